// The bytes of the heap that tables hold, spare capacity included, and a way to give them back.
#pragma once

#include <cstddef>
#include <vector>

namespace memfit {

template <typename... Entry>
size_t held_bytes(const std::vector<Entry>&... tables) {
  return (size_t{0} + ... + (tables.capacity() * sizeof(Entry)));
}

// To assign `{}` keeps the capacity.
template <typename Entry>
void give_back(std::vector<Entry>& table) {
  std::vector<Entry>().swap(table);
}

}  // namespace memfit
