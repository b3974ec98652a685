#include "store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "compression.h"
#include "tier.h"

namespace memfit {

namespace {

using Page = std::array<char, Tier::kAlignment>;

size_t in_page(size_t at, size_t stored) { return std::min(Tier::kAlignment, stored - at); }

}  // namespace

Store::Store(std::unique_ptr<Medium> medium, size_t boundary, Compressing* compressing)
    : medium_(std::move(medium)), boundary_(boundary), compressing_(compressing) {}

Store::~Store() = default;

void Store::iteration_ends(uint64_t waited_ns, uint64_t copied_ns) const {
  if (compressing_ != nullptr) compressing_->iteration_ends(waited_ns, copied_ns);
}

void Store::write(size_t offset, const void* from, size_t size) {
  medium_->write(offset, from, size);
  if (!is_compressed(offset)) uncompressed_out_ += size;
}

void Store::read(size_t offset, void* to, size_t size) {
  medium_->read(offset, to, size);
  if (!is_compressed(offset)) uncompressed_in_ += size;
}

void Store::read_part(size_t offset, size_t stored, size_t at, void* to, size_t size) {
  auto* bytes = static_cast<char*>(to);
  if (const size_t head = std::min(size, round_up(at, Tier::kAlignment) - at); head != 0) {
    Page page;
    const size_t begin = at / Tier::kAlignment * Tier::kAlignment;
    read(offset + begin, page.data(), in_page(begin, stored));
    std::memcpy(bytes, page.data() + (at - begin), head);
    at += head, bytes += head, size -= head;
  }
  const size_t whole = at + size == stored ? size : size / Tier::kAlignment * Tier::kAlignment;
  if (whole != 0) read(offset + at, bytes, whole);
  if (whole == size) return;
  Page page;
  read(offset + at + whole, page.data(), in_page(at + whole, stored));
  std::memcpy(bytes + whole, page.data(), size - whole);
}

// At its ends it may share a page with bytes that stay.
void Store::write_part(size_t offset, size_t stored, size_t at, const void* from, size_t size) {
  const auto* bytes = static_cast<const char*>(from);
  const auto mend = [&](size_t part) {
    const size_t begin = at / Tier::kAlignment * Tier::kAlignment;
    Page page;
    read(offset + begin, page.data(), in_page(begin, stored));
    std::memcpy(page.data() + (at - begin), bytes, part);
    write(offset + begin, page.data(), in_page(begin, stored));
    at += part, bytes += part, size -= part;
  };
  if (const size_t head = std::min(size, round_up(at, Tier::kAlignment) - at); head != 0) mend(head);
  const size_t whole = at + size == stored ? size : size / Tier::kAlignment * Tier::kAlignment;
  if (whole != 0) write(offset + at, bytes, whole);
  at += whole, bytes += whole, size -= whole;
  if (size != 0) mend(size);
}

uint64_t Store::bytes_stored() const { return uncompressed_out_ + (compressing_ != nullptr ? compressing_->bytes_stored() : 0); }
uint64_t Store::bytes_loaded() const { return uncompressed_in_ + (compressing_ != nullptr ? compressing_->bytes_loaded() : 0); }

size_t Store::stored(size_t offset, size_t size) const {
  return is_compressed(offset) ? compressing_->stored_at(offset - boundary_, size) : size;
}

}  // namespace memfit
