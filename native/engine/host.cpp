// The CPU: memory from mmap, copies at once, and the allocator that stands in for torch's.
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "common/sizes.h"
#include "device.h"
#include "engine.h"
#include "fingerprint.h"
#include "lanes.h"
#include "pointers.h"

namespace memfit {

namespace {

constexpr size_t kPage = 4096;

// Pages become real when they are touched.
class Mapping final : public AddressSpace {
 public:
  explicit Mapping(size_t bytes) : size_(round_up(bytes, kPage)) {
    void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(base);
  }
  ~Mapping() override { munmap(base_, size_); }

  char* base() const override { return base_; }
  size_t size() const override { return size_; }
  size_t page_at(size_t) const override { return kPage; }
  void back(size_t, size_t) override {}
  void drop(size_t from, size_t to) override {
    from = round_up(from, kPage);
    to = to / kPage * kPage;
    if (to > from) madvise(base_ + from, to - from, MADV_DONTNEED);
  }

 private:
  char* base_;
  size_t size_;
};

// Once installed it stays: memory taken raw (without a storage) in a session may be given back after it, and only
// this allocator can tell whose it is. Without a session it hands every call on to torch's own.
class HostAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    return Engine::get().allocate(host(), bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_by_address; }
  bool is_simple_data_ptr(const at::DataPtr& pointer) const override { return is_simple(pointer); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

class Host final : public Device {
 public:
  Host() : Device(at::Device(at::DeviceType::CPU)) {}

  size_t alignment() const override { return kHostAlignment; }
  // More than the machine has is no limit, and more address space than there is cannot be reserved.
  size_t limit(size_t budget) const override {
    size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return budget != 0 ? std::min(budget, 4 * memory) : memory;
  }
  std::unique_ptr<AddressSpace> reserve(size_t addresses, size_t) override { return std::make_unique<Mapping>(addresses); }

  c10::Allocator& ordinary() override { return ordinary_ != nullptr ? *ordinary_ : *c10::GetCPUAllocator(); }
  c10::Allocator& own() override { return own_; }
  void install() override {
    if (ordinary_ != nullptr) return;
    ordinary_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&own_, /*priority=*/100);
  }
  void session_ended(bool) override { ended_ = 0; }
  bool allocated(const void*) const override { return true; }

  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  bool slide(void* to, const void* from, size_t bytes) override {
    std::memmove(to, from, bytes);
    return true;
  }
  bool have_same_bytes(void* spent, const void* other, size_t bytes) override { return std::memcmp(spent, other, bytes) == 0; }
  uint64_t fingerprint_of(const void* address, size_t bytes) override { return fingerprint(address, bytes); }
  std::unique_ptr<Medium> slab(size_t capacity) override { return make_ram(capacity); }
  std::unique_ptr<Medium> through_host(std::unique_ptr<Medium> inner) override { return inner; }
  std::unique_ptr<Lane> make_lane(const Tier&) override { return std::make_unique<ThreadLane>(); }

  int64_t stamp() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void note_iteration(uint64_t& known, uint64_t& ns) override {
    const int64_t before = std::exchange(ended_, stamp());
    if (before != 0) ++known, ns += static_cast<uint64_t>(ended_ - before);
  }

 private:
  HostAllocator own_;
  c10::Allocator* ordinary_ = nullptr;
  int64_t ended_ = 0;  // the last iteration
};

}  // namespace

void delete_by_address(void* address) {
  if (address != nullptr) Engine::get().release_by_address(address);
}

void delete_by_block(void* block) { Engine::get().release_by_block(static_cast<Block*>(block)); }

Device& host() {
  static auto* instance = new Host;  // never destroyed: storages may outlive every static
  return *instance;
}

#ifndef MEMFIT_CUDA
Device& find_device(c10::Device name) {
  if (name.is_cpu()) return host();
  throw std::invalid_argument("this engine was built without support for " + name.str() + ": memfit doctor says why");
}
#endif

}  // namespace memfit
