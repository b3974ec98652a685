#include "frame_room.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace memfit {

namespace {

constexpr size_t kShareOfLimit = 16, kShareForRows = 4;

// What is swept is touched here and there at once: by a product, in as many rows as it adds up.
constexpr size_t chunks_in_frames(Access access) { return access == Access::kSweeps ? 512 : 32; }

// A page that a neighbour has a part of stays its own.
size_t whole_pages(size_t begin, size_t end) {
  const size_t first = round_up(begin, kFaultPage), last = end / kFaultPage * kFaultPage;
  return last - std::min(first, last);
}

}  // namespace

size_t FrameRoom::bytes() const {
  const size_t limit = memory_.arena->ranges.limit();
  return is_needed() ? memory_.arena->round(std::max(limit / kShareOfLimit, kLeastFrames)) : reach_.reserve_bytes(limit);
}

// Rows that are wanted again soon are still there then.
size_t FrameRoom::bytes_for_rows() const { return memory_.arena->round(memory_.arena->ranges.limit() / kShareForRows); }

bool FrameRoom::open(ThreadState& thread, size_t bytes, size_t to_come) {
  const bool is_for_rows = !is_needed() && thread.access == Access::kRows;  // of a GPU's, which come nowhere
  if (this->bytes() == 0 || is_open() || is_for_rows) return true;
  if (is_needed() && !page_frames_) page_frames_ = std::make_shared<PageFrames>(mechanism_, mortality_);
  Region* region = planned_.place_frames(thread, &ballast_);
  if (region == nullptr) region = place_beside(bytes, to_come);
  if (region == nullptr && thread.starting) {
    residency_.consolidate(thread.touched);
    region = place_beside(bytes, to_come);
  }
  if (region == nullptr) return false;
  ballast_.region = region;
  memory_.arena->vacate(region);
  if (is_needed())
    page_frames_->set_limit(whole_pages(region->offset, region->end()));
  else
    reach_.reserve(*region);
  return true;
}

bool FrameRoom::open_most(ThreadState& thread, size_t bytes, size_t to_come) {
  const size_t few = this->bytes();
  return open(thread, bytes, to_come) || (bytes > few && open_most(thread, std::max(bytes / 2, few), to_come));
}

// Where it is cheapest; or at an end, where that is in the way of `to_come` bytes. nullptr: there is no room for both.
Region* FrameRoom::place_beside(size_t bytes, size_t to_come) {
  const auto leaves_room = [&](Region*& region) {
    if (region == nullptr || to_come == 0 || residency_.has_window(to_come, /*running=*/true)) return region != nullptr;
    memory_.arena->give_back(std::exchange(region, nullptr));
    return false;
  };
  Region* region = placing_.place(bytes, &ballast_, {/*more=*/0, /*high=*/true});
  if (leaves_room(region) || memory_.arena->plan() != nullptr) return region;
  region = residency_.place_at_edge(bytes, &ballast_, /*high=*/true);
  leaves_room(region);
  return region;
}

bool FrameRoom::give_back() {
  if (!is_open() || (is_needed() ? !page_frames_->is_empty() : reach_.is_in_use())) return false;
  if (!is_needed()) reach_.end_reserve();
  memory_.arena->give_back(std::exchange(ballast_.region, nullptr));
  return true;
}

bool FrameRoom::shrink() {
  if (!is_needed() || !is_open() || ballast_.region->size <= bytes() || memory_.arena->is_planned(ballast_.region)) return false;
  const size_t end = ballast_.region->end(), kept = std::max(bytes(), memory_.arena->round(ballast_.region->size / 2));
  const size_t fewer = whole_pages(end - kept, end);
  page_frames_->set_limit(fewer);
  if (page_frames_->figures().frame_bytes > fewer) {  // they cannot leave
    page_frames_->set_limit(whole_pages(ballast_.region->offset, end));
    return false;
  }
  ballast_.region = memory_.arena->ranges.keep_last(ballast_.region, kept);
  return true;
}

std::shared_ptr<Mapped> FrameRoom::map(const Block& block, Access access, Extent extent, Extent source) {
  if (!is_needed()) return reach_.map(block, access, extent, source);
  const size_t chunk = std::clamp(std::bit_floor(ballast_.region->size / chunks_in_frames(access)), kFaultPage, chunk_for(access));
  return page_frames_->map({block.tier, extent, block.bytes, chunk, source, access});
}

void FrameRoom::become_inert() { new std::shared_ptr<PageFrames>(std::move(page_frames_)); }

void FrameRoom::count(Stats& figures) const {
  reach_.count(figures);
  if (!page_frames_) return;
  const PageFrames::Figures now = page_frames_->figures();
  figures.faults = now.faults;
  figures.fault_ns = now.fault_ns;
  figures.mapped_bytes_in = now.bytes_in;
  figures.mapped_bytes_out = now.bytes_out;
  figures.frame_bytes = now.frame_bytes;
  figures.peak_frame_bytes = now.peak_frame_bytes;
}

}  // namespace memfit
