#include "rows.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "../observer.h"

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

// A gradient of an embedding: rows of what it is added to.
at::Tensor rows_of_sparse(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().layout() != at::kSparse) return {};
  const auto* sparse = static_cast<const at::SparseTensorImpl*>(value.toTensor().unsafeGetTensorImpl());
  return sparse->sparse_dim() == 1 ? sparse->indices() : at::Tensor();
}

// table[rows]
at::Tensor only_index(const c10::IValue& value) {
  if (!value.isList()) return {};
  const c10::ArrayRef<c10::IValue> indices = value.toListRef();
  return indices.size() == 1 && indices[0].isTensor() ? indices[0].toTensor() : at::Tensor();
}

at::Tensor along_the_first(const c10::IValue& dimension, const c10::IValue& indices) {
  return dimension.isInt() && dimension.toInt() == 0 && indices.isTensor() ? indices.toTensor() : at::Tensor();
}

bool is_any_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Of the table that is the op's first input.
at::Tensor indices_of(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (is_any_of(op.name, {"aten::add_.Tensor", "aten::sparse_mask"})) return rows_of_sparse(inputs[1]);
  if (is_any_of(op.name, {"aten::index.Tensor"})) return only_index(inputs[1]);
  if (is_any_of(op.name, {"aten::index_select", "aten::index_add_", "aten::index_copy_"})) return along_the_first(inputs[1], inputs[2]);
  const bool looks_up = is_any_of(op.name, {"aten::embedding", "aten::embedding_bag", "aten::embedding_bag.padding_idx", "aten::_embedding_bag",
                                            "aten::_embedding_bag_forward_only"});
  return looks_up && inputs[1].isTensor() ? inputs[1].toTensor() : at::Tensor();
}

}  // namespace

Rows rows_used_by(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor() || !is_table(inputs[0].toTensor())) return {};
  const at::Tensor &table = inputs[0].toTensor(), indices = indices_of(op, inputs);
  if (!is_list(indices)) return {};
  Rows rows{table.storage().unsafeGetStorageImpl(), op.may_write(0), static_cast<size_t>(table.stride(0)) * table.itemsize(), {}};
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
