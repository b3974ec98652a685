// The engine's Ranges as C functions.
#include "engine/ranges.cpp"

using memfit::Ranges;
using memfit::Region;

extern "C" {
Ranges* ranges_make(size_t limit, size_t alignment) { return new Ranges(limit, alignment); }
void ranges_delete(Ranges* ranges) { delete ranges; }
Region* ranges_take(Ranges* ranges, size_t size, bool high) { return ranges->take(size, ranges, high); }
Region* ranges_take_at(Ranges* ranges, size_t offset, size_t size) { return ranges->take_at(ranges->hole_at(offset), offset, size, ranges); }
void ranges_give_back(Ranges* ranges, Region* region) { ranges->give_back(region); }
bool ranges_refuses(Ranges* ranges, Region* region) {
  try {
    ranges->give_back(region);
    return false;
  } catch (const std::logic_error&) {
    return true;
  }
}
Region* ranges_keep_last(Ranges* ranges, Region* region, size_t size) { return ranges->keep_last(region, size); }
void ranges_shrink(Ranges* ranges, size_t limit) { ranges->shrink(limit); }
void ranges_grow(Ranges* ranges, size_t limit) { ranges->grow(limit); }
size_t ranges_offset(const Region* region) { return region->offset; }
size_t ranges_free(const Ranges* ranges) { return ranges->free_bytes(); }
size_t ranges_largest(const Ranges* ranges) { return ranges->largest_free(); }
size_t ranges_used(const Ranges* ranges) { return ranges->used(); }
size_t ranges_footprint(const Ranges* ranges) { return ranges->footprint(); }
// (offset, size, taken) of each region, in the list's order; returns how many there are.
size_t ranges_list(const Ranges* ranges, size_t* rows) {
  size_t count = 0;
  const Region* before = nullptr;
  for (const Region* region = ranges->first(); region != nullptr; before = region, region = region->next, ++count) {
    rows[3 * count] = region->offset;
    rows[3 * count + 1] = region->size;
    rows[3 * count + 2] = region->prev != before ? 2 : !region->is_free();
  }
  return count;
}
}
