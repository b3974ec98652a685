// Columns between numpy and C++.
#pragma once

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace memfit::swapping {

template <typename T>
using In = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// Native code indexes without bounds checks: what would lead it astray is refused.
inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

template <typename T>
auto to_numpy(const std::vector<T>& values) {
  auto* data = new T[std::max<std::size_t>(1, values.size())];
  std::copy(values.begin(), values.end(), data);
  nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>(data, {values.size()}, owner);
}

template <typename Row, typename T>
auto to_numpy(const std::vector<Row>& rows, T Row::* field) {
  std::vector<std::int64_t> values;
  for (const Row& row : rows) values.push_back(static_cast<std::int64_t>(row.*field));
  return to_numpy(values);
}

}  // namespace memfit::swapping
