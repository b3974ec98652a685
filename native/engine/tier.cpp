#include "tier.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "compression.h"
#include "device.h"

namespace memfit {

namespace {

constexpr size_t kOffsets = size_t{1} << 46;  // an address space of offsets, not bytes that exist

uint64_t checksum(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = 0x9E3779B97F4A7C15ull ^ size;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  for (; i < size; ++i) hash = (hash ^ bytes[i]) * 0xD6E8FEB86659FD93ull;
  return hash;
}

class Behind final : public Medium {
 public:
  Behind(std::unique_ptr<Medium> first, size_t boundary, std::unique_ptr<Medium> second)
      : first_(std::move(first)), second_(std::move(second)), boundary_(boundary) {}

  void write(size_t offset, const void* from, size_t size) override { at(offset).write(local(offset), from, size); }
  void read(size_t offset, void* to, size_t size) override { at(offset).read(local(offset), to, size); }
  void discard(size_t offset, size_t size) override { at(offset).discard(local(offset), size); }
  void claim(size_t offset, size_t size) override { at(offset).claim(local(offset), size); }
  char* address(size_t offset, size_t size) override { return at(offset).address(local(offset), size); }
  void expect(size_t offset, size_t size) override { at(offset).expect(local(offset), size); }
  std::string name() const override { return first_->name() + "+" + second_->name(); }

 private:
  Medium& at(size_t offset) { return offset < boundary_ ? *first_ : *second_; }
  size_t local(size_t offset) const { return offset < boundary_ ? offset : offset - boundary_; }

  std::unique_ptr<Medium> first_, second_;
  size_t boundary_;
};

// One checksum a page, since a part of what was written may be read.
class Checked final : public Medium {
 public:
  explicit Checked(std::unique_ptr<Medium> inner) : inner_(std::move(inner)) {}

  void write(size_t offset, const void* from, size_t size) override {
    inner_->write(offset, from, size);
    std::lock_guard<std::mutex> lock(mutex_);
    each_page(offset, from, size, [this](size_t at, uint64_t sum) { sums_[at] = sum; });
  }
  void read(size_t offset, void* to, size_t size) override {
    inner_->read(offset, to, size);
    std::lock_guard<std::mutex> lock(mutex_);
    each_page(offset, to, size, [this](size_t at, uint64_t sum) {
      if (sum != sums_.at(at))
        throw TierFailure("the bytes read back from " + inner_->name() + " differ from those written (checksum); choose another disk with --tier disk:PATH");
    });
  }
  void discard(size_t offset, size_t size) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (size_t at = offset; at < offset + size; at += Tier::kAlignment) sums_.erase(at);
    }
    inner_->discard(offset, size);
  }
  void claim(size_t offset, size_t size) override { inner_->claim(offset, size); }
  std::string name() const override { return inner_->name(); }

 private:
  template <typename Action>
  static void each_page(size_t offset, const void* bytes, size_t size, const Action& action) {
    for (size_t done = 0; done < size; done += Tier::kAlignment)
      action(offset + done, checksum(static_cast<const char*>(bytes) + done, std::min(Tier::kAlignment, size - done)));
  }

  std::unique_ptr<Medium> inner_;
  std::mutex mutex_;
  std::unordered_map<size_t, uint64_t> sums_;
};

class Faulty final : public Medium {
 public:
  Faulty(std::unique_ptr<Medium> inner, Faults faults) : inner_(std::move(inner)), faults_(faults) {}

  void write(size_t offset, const void* from, size_t size) override {
    if (due(++writes_, faults_.fail_write)) throw TierFailure("injected fault: write failed");
    inner_->write(offset, from, size);
  }
  void read(size_t offset, void* to, size_t size) override {
    int64_t count = ++reads_;
    if (due(count, faults_.fail_read)) throw TierFailure("injected fault: read failed");
    inner_->read(offset, to, size);
    if (due(count, faults_.corrupt_read)) static_cast<char*>(to)[size / 2] ^= 0x10;
  }
  void discard(size_t offset, size_t size) override { inner_->discard(offset, size); }
  void claim(size_t offset, size_t size) override { inner_->claim(offset, size); }
  std::string name() const override { return inner_->name(); }

 private:
  bool due(int64_t count, int64_t at) const {
    return at != 0 && (count == at || (faults_.repeat && count > at));
  }

  std::unique_ptr<Medium> inner_;
  Faults faults_;
  std::atomic<int64_t> writes_{0};
  std::atomic<int64_t> reads_{0};
};

class Linked final : public Medium {
 public:
  Linked(std::unique_ptr<Medium> inner, Link link) : inner_(std::move(inner)), link_(link) {}

  void write(size_t offset, const void* from, size_t size) override {
    Passage passage(out_, seconds(size));
    inner_->write(offset, from, size);
  }
  void read(size_t offset, void* to, size_t size) override {
    Passage passage(in_, seconds(size));
    inner_->read(offset, to, size);
  }
  void discard(size_t offset, size_t size) override { inner_->discard(offset, size); }
  void claim(size_t offset, size_t size) override { inner_->claim(offset, size); }
  std::string name() const override { return inner_->name(); }

 private:
  // One copy at a time each way, and none is over before the link would have carried it.
  class Passage {
   public:
    Passage(std::mutex& way, double seconds) : lock_(way), over_(std::chrono::steady_clock::now()) {
      over_ += std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
    }
    ~Passage() { std::this_thread::sleep_until(over_); }

   private:
    std::lock_guard<std::mutex> lock_;
    std::chrono::steady_clock::time_point over_;
  };

  double seconds(size_t size) {
    const bool has_changed = ++copies_ >= link_.changes_at && link_.changes_at > 0;
    const double speed = link_.bytes_per_second * (has_changed ? link_.change : 1);
    return link_.latency_seconds + (speed > 0 ? static_cast<double>(size) / speed : 0);
  }

  std::unique_ptr<Medium> inner_;
  Link link_;
  std::atomic<int64_t> copies_{0};
  std::mutex out_, in_;
};

std::unique_ptr<Medium> disturbed(std::unique_ptr<Medium> medium, const TierRecipe& recipe) {
  const Faults& faults = recipe.faults;
  if (recipe.link.bytes_per_second > 0 || recipe.link.latency_seconds > 0) medium = with_link(std::move(medium), recipe.link);
  if (faults.fail_write || faults.fail_read || faults.corrupt_read) medium = with_faults(std::move(medium), faults);
  return medium;
}

}  // namespace

std::unique_ptr<Medium> one_behind_another(std::unique_ptr<Medium> first, size_t boundary, std::unique_ptr<Medium> second) {
  return std::make_unique<Behind>(std::move(first), boundary, std::move(second));
}

std::unique_ptr<Medium> with_checksums(std::unique_ptr<Medium> inner) {
  return std::make_unique<Checked>(std::move(inner));
}

std::unique_ptr<Medium> with_link(std::unique_ptr<Medium> inner, Link link) {
  return std::make_unique<Linked>(std::move(inner), link);
}

std::unique_ptr<Medium> with_faults(std::unique_ptr<Medium> inner, Faults faults) {
  return std::make_unique<Faulty>(std::move(inner), faults);
}

Tier::Tier(std::unique_ptr<Medium> medium, size_t boundary, Compressing* compressing)
    : maker_(getpid()),
      store_(std::move(medium), boundary, compressing),
      ranges_(kOffsets, kAlignment),
      wall_(boundary != 0 ? kAlignment : 0) {
  if (boundary != 0) ranges_.reserve_at(ranges_.first(), boundary, wall_, this);
}

std::shared_ptr<Tier> make_tier(Device& device, const TierRecipe& recipe) {
  device.delay_copies(recipe.longest_delay_us);
  bool ram = recipe.kind == "ram", both = ram && !recipe.folder.empty();
  size_t capacity = round_up(recipe.capacity, Tier::kAlignment);
  std::unique_ptr<Medium> medium;
  if (ram) medium = recipe.is_plain() ? device.slab(capacity) : make_ram(capacity);
  Compressing* compressing = nullptr;
  if (!ram || both) {
    std::unique_ptr<Medium> disk = make_disk(recipe.folder);
    if (recipe.compresses) {  // what disturbs the tier lies under it
      std::unique_ptr<Compressing> outer = with_compression(disturbed(std::move(disk), recipe));
      compressing = outer.get();
      disk = std::move(outer);
    }
    if (recipe.is_plain()) disk = device.through_host(std::move(disk));
    medium = ram ? one_behind_another(std::move(medium), capacity, std::move(disk)) : std::move(disk);
  }
  if (!recipe.is_plain()) {
    if (compressing == nullptr) medium = disturbed(std::move(medium), recipe);
    if (recipe.checked) medium = with_checksums(std::move(medium));
    medium = device.through_host(std::move(medium));
  }
  auto tier = std::make_shared<Tier>(std::move(medium), both ? capacity : 0, compressing);
  if (recipe.no_threads) tier->refuses_lanes = true;
  return tier;
}

void Tier::check_own() const {
  if (getpid() != maker_)
    throw TierFailure("the tier " + store_.medium().name() + " belongs to another process; a forked child can only read it: begin a session in the child");
}

Extent Tier::reserve(size_t size) {
  check_own();
  Extent extent = ranges_.take(size, this);
  if (extent == nullptr)
    throw TierFailure("the tier " + store_.medium().name() + " is full; name a larger one: --tier ram:BYTES+disk:PATH or --tier disk:PATH");
  return extent;
}

Extent Tier::claim(size_t size) {
  Extent extent = reserve(size);
  try {
    store_.medium().claim(extent->offset, extent->size);
  } catch (...) {
    ranges_.give_back(extent);
    throw;
  }
  return extent;
}

Extent Tier::put(const void* from, size_t size) {
  Extent extent = reserve(size);
  try {
    store_.write(extent->offset, from, size);
  } catch (...) {
    ranges_.give_back(extent);
    throw;
  }
  return extent;
}

void Tier::get(Extent extent, void* to, size_t size) { store_.read(extent->offset, to, size); }

void Tier::write(Extent extent, const void* from, size_t size) {
  check_own();
  store_.write(extent->offset, from, size);
}

void Tier::get_part(Extent extent, size_t stored, size_t at, void* to, size_t size) {
  store_.read_part(extent->offset, stored, at, to, size);
}

void Tier::write_part(Extent extent, size_t stored, size_t at, const void* from, size_t size) {
  check_own();
  store_.write_part(extent->offset, stored, at, from, size);
}

void Tier::release(Extent extent) {
  if (getpid() != maker_) return;
  if (frozen_)
    released_while_frozen_.push_back(extent);
  else
    drop(extent);
}

void Tier::drop(Extent extent) {
  store_.medium().discard(extent->offset, extent->size);
  ranges_.give_back(extent);
  ++releases_;
}

void Tier::freeze() { frozen_ = true; }

void Tier::thaw() {
  frozen_ = false;
  for (Extent extent : released_while_frozen_) drop(extent);
  released_while_frozen_.clear();
}

}  // namespace memfit
