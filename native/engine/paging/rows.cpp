#include "rows.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "../observer.h"
#include "access.h"

namespace memfit {

namespace {

template <typename Index>
void add_offsets(const at::Tensor& indices, size_t first, size_t row_bytes, int64_t count, std::vector<size_t>& offsets) {
  const auto* index = static_cast<const Index*>(indices.const_data_ptr());
  for (int64_t i = 0; i < indices.numel(); ++i)
    if (index[i] >= 0 && index[i] < count) offsets.push_back(first + static_cast<size_t>(index[i]) * row_bytes);
}

bool is_table(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && tensor.dim() >= 1 && tensor.is_contiguous();
}

bool is_list(const at::Tensor& indices) {
  const bool is_number = indices.defined() && (indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt);
  return is_number && indices.device().is_cpu() && indices.layout() == at::kStrided && indices.is_contiguous();
}

at::Tensor indices_of(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  const bool selects = op.name == "aten::index_select" && inputs[1].isInt() && inputs[1].toInt() == 0;
  const size_t last = selects ? 2 : 1;
  return (selects || op.name == "aten::embedding") && inputs[last].isTensor() ? inputs[last].toTensor() : at::Tensor();
}

// A gradient of an embedding: rows of what it is added to.
at::Tensor rows_of_sparse(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().layout() != at::kSparse) return {};
  const auto* sparse = static_cast<const at::SparseTensorImpl*>(value.toTensor().unsafeGetTensorImpl());
  return sparse->sparse_dim() == 1 ? sparse->indices() : at::Tensor();
}

}  // namespace

Rows rows_used_by(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  const bool writes = op.name == "aten::add_.Tensor";
  if (inputs.empty() || !inputs[0].isTensor() || (!writes && access_of(op.name) != Access::kRows)) return {};
  const at::Tensor &table = inputs[0].toTensor(), indices = writes ? rows_of_sparse(inputs[1]) : indices_of(op, inputs);
  if (!is_table(table) || !is_list(indices)) return {};
  Rows rows{table.storage().unsafeGetStorageImpl(), writes, static_cast<size_t>(table.stride(0)) * table.itemsize(), {}};
  const size_t first = static_cast<size_t>(table.storage_offset()) * table.itemsize();
  if (indices.scalar_type() == at::kLong)
    add_offsets<int64_t>(indices, first, rows.row_bytes, table.size(0), rows.offsets);
  else
    add_offsets<int32_t>(indices, first, rows.row_bytes, table.size(0), rows.offsets);
  std::sort(rows.offsets.begin(), rows.offsets.end());
  rows.offsets.erase(std::unique(rows.offsets.begin(), rows.offsets.end()), rows.offsets.end());
  return rows;
}

}  // namespace memfit
