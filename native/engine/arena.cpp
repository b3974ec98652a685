#include "arena.h"

#include <sys/mman.h>

#include <new>

namespace memfit {

namespace {
constexpr size_t kPage = 4096;

void return_pages(char* base, size_t from, size_t to) {
  from = round_up(from, kPage);
  to = to / kPage * kPage;
  if (to > from) madvise(base + from, to - from, MADV_DONTNEED);
}
}  // namespace

Arena::Arena(size_t reserve_bytes, size_t limit_bytes)
    : ranges(limit_bytes, kAlignment), reserved_(round_up(reserve_bytes, kPage)) {
  void* base = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(base);
}

Arena::~Arena() { munmap(base_, reserved_); }

void Arena::shrink(size_t limit_bytes) {
  ranges.shrink(limit_bytes);
  for (Region* r = ranges.first(); r != nullptr; r = r->next)
    if (r->is_free()) return_pages(base_, r->offset, r->end());
}

void Arena::drop_pages(const Region* region) { return_pages(base_, region->offset, region->end()); }

}  // namespace memfit
