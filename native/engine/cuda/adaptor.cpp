#include "adaptor.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../engine.h"
#include "../pointers.h"
#include "cuda_device.h"
#include "virtual_memory.h"

namespace memfit::cuda {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;
using caching::CUDAAllocator;

std::atomic<CUDAAllocator*> native{nullptr};
thread_local bool is_without_session = false;

// The interface grows with torch's versions, in methods that are not there to be overridden in older ones: those are
// declared without `override`, and call the native allocator only where it has them.
class Adaptor final : public CUDAAllocator {
 public:
  // The engine answers for these.
  at::DataPtr allocate(size_t bytes) override {
    if (serves()) return Engine::get().allocate(*device_, bytes);
    at::DataPtr pointer = own().allocate(bytes);
    if (pools_ > 0) note_pooled(pointer.get());
    return pointer;
  }
  void* raw_alloc(size_t bytes) override { return serves() ? raw(bytes) : own().raw_alloc(bytes); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    bool ours = serves() && stream == device_->compute();
    return ours ? raw(bytes) : own().raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* pointer) override {
    if (pointer != nullptr && (is_without_session || !Engine::get().release_if_known(pointer))) own().raw_delete(pointer);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_by_address; }
  bool is_simple_data_ptr(const at::DataPtr& pointer) const override { return is_simple(pointer); }
  void copy_data(void* to, const void* from, size_t bytes) const override { own().copy_data(to, from, bytes); }
  void recordStream(const at::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    // What is in the arena is the compute stream's. (A Future that is waited for records what it holds: DDP's buckets.)
    if (device_ != nullptr && stream.stream() == device_->compute() && Engine::get().is_known(pointer.get())) return;
    // It may be in use there at any time until it is freed: so it stays where it is, and whoever gets its bytes next
    // comes after the stream.
    if (Engine::get().pin_address(pointer.get()))
      device_->used_by(pointer.get(), stream.stream());
    else
      own().recordStream(pointer, stream);
  }
  void* getBaseAllocation(void* pointer, size_t* size) override {
    refuse_if_ours(pointer, "its memory cannot be shared with another process");
    return own().getBaseAllocation(pointer, size);
  }
  caching::ShareableHandle shareIpcHandle(void* pointer) override {
    refuse_if_ours(pointer, "its memory cannot be shared with another process");
    return own().shareIpcHandle(pointer);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats = own().getDeviceStats(device);
    if (device_ != nullptr && device == device_->index()) add_arena(stats);
    return stats;
  }

  // What cuDNN begins to try with: no more than can be had.
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    own().cacheInfo(device, largest);
    if (!serves() || device != device_->index()) return;
    const size_t most = Engine::get().in_session([](Session& session) { return session.residency.widest_window(/*running=*/true); });
    *largest = std::min(*largest, most);
  }

  // Torch's own allocator does these.
  bool initialized() override { return own().initialized(); }
  void init(int device_count) override { own().init(device_count); }
  void emptyCache(MempoolId_t pool) override { own().emptyCache(pool); }
  double getMemoryFraction(DeviceIndex device) override { return own().getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override { own().setMemoryFraction(fraction, device); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return own().getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { own().enable(value); }
  bool isEnabled() const override { return own().isEnabled(); }
  // The arena is one more segment of torch's ordinary memory.
  caching::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    caching::SnapshotInfo info = own().snapshot(pool, traces);
    if (device_ != nullptr && pool == MempoolId_t{0, 0})
      Engine::get().in_session([&](Session& session) { info.segments.push_back(segment_of(session)); });
    return info;
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    ++pools_;
    own().beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    --pools_;
    own().endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { own().releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return own().getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    own().createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override { own().setUseOnOOM(device, pool, use); }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { own().setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& live) override {
    return own().checkPoolLiveAllocations(device, pool, live);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return own().getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return own().isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t entries, caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    if (enabled) Engine::get().note_history(true);
    own().recordHistory(enabled, recorder, entries, when, clear, skipped);
    if (!enabled) Engine::get().note_history(false);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& text) override { own().recordAnnotation(text); }
  void pushCompileContext(std::string& text) override { own().pushCompileContext(text); }
  void popCompileContext() override { own().popCompileContext(); }
  void setUserMetadata(const std::string& text) override { own().setUserMetadata(text); }
  std::string getUserMetadata() override { return own().getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    own().attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    own().attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
    own().enablePeerAccess(device, other);
    open_to(other, device);
  }
  // Without peer access a plain copy between GPUs takes mapped memory for nobody's; one that names them does not.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peer) override {
    if (to_device != from_device && (is_reserved(to) || is_reserved(from)))
      return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    return own().memcpyAsync(to, to_device, from, from_device, bytes, stream, peer);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return own().getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    return own().setCheckpointPoolState(device, std::move(state));
  }
  void resetAccumulatedStats(DeviceIndex device) override { own().resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override {
    Engine::get().in_session([](Session& session) { session.reset_peaks(); });
    own().resetPeakStats(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return own().getMemoryInfo(device); }
  std::string name() override { return own().name(); }

  // Of torch 2.12 and later. (The observer's type is spelt as that of the one above, which is the same.)
  void markCaptureBegin(DeviceIndex device) { mark_begin(own(), device); }
  void markCaptureEnd(DeviceIndex device) { mark_end(own(), device); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) { return context_of(own(), pointer); }
  void attachOomRejectionObserver(caching::OutOfMemoryObserver observer) { attach_rejection(own(), std::move(observer)); }
  at::DataPtr allocateWithAddress(size_t bytes, void* address) { return allocate_at(own(), bytes, address); }

  void serve(CudaDevice* device) { device_ = device; }

  // Which memory lies in pools, from torch's own books: what is allocated for one from here on is noted. An allocator
  // that keeps none (`cudaMallocAsync`) has no pools either.
  void find_pools() {
    std::vector<Stretch> stretches;
    try {
      for (const auto& segment : own().snapshot({0, 0}, false).segments)
        if (segment.owner_private_pool_id != MempoolId_t{0, 0})
          stretches.push_back({segment.address, segment.address + segment.total_size});
    } catch (const c10::Error&) {
    }
    std::lock_guard<std::mutex> lock(pooled_mutex_);
    pooled_.clear();
    pool_stretches_ = std::move(stretches);
  }
  bool is_pooled(const void* address) {
    auto at = reinterpret_cast<size_t>(address);
    std::lock_guard<std::mutex> lock(pooled_mutex_);
    return pooled_.count(address) != 0 || std::any_of(pool_stretches_.begin(), pool_stretches_.end(), [at](const Stretch& s) {
             return at >= s.begin && at < s.end;
           });
  }

 private:
  static CUDAAllocator& own() { return native_allocator(); }

  // Whether an allocation of this thread is the session's: of its device and compute stream, and for no memory pool.
  bool serves() const {
    if (device_ == nullptr || pools_ > 0 || is_without_session || !Engine::get().active()) return false;
    int current = 0;
    return cudaGetDevice(&current) == cudaSuccess && current == device_->index() && !device_->is_aside();
  }

  struct Stretch {
    size_t begin, end;
  };

  void note_pooled(const void* address) {
    std::lock_guard<std::mutex> lock(pooled_mutex_);
    pooled_.insert(address);
  }

  void* raw(size_t bytes) { return Engine::get().allocate(*device_, bytes).release_context(); }

  void refuse_if_ours(void* pointer, const char* why) const {
    TORCH_CHECK(!Engine::get().is_known(pointer), "memfit: this tensor lies in a session's arena, and ", why,
                "; do it before or after the session");
  }

  // Torch divides its memory into pools of small and of large blocks. The arena counts as one large segment.
  static void add_arena(c10::CachingDeviceAllocator::DeviceStats& stats) {
    using c10::CachingAllocator::StatType;
    const Stats arena = Engine::get().stats();
    const size_t count = Engine::get().in_session([](Session& session) { return in_arena(session).size(); });
    auto add = [](c10::CachingAllocator::StatArray& array, size_t now, size_t peak) {
      for (const StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
        auto& stat = array[static_cast<size_t>(type)];
        stat.peak = std::max(stat.peak + static_cast<int64_t>(peak), stat.current + static_cast<int64_t>(now));
        stat.current += static_cast<int64_t>(now);
      }
    };
    add(stats.allocated_bytes, arena.resident_bytes, arena.peak_resident_bytes);
    add(stats.active_bytes, arena.resident_bytes, arena.peak_resident_bytes);
    add(stats.requested_bytes, arena.resident_bytes, arena.peak_resident_bytes);
    add(stats.reserved_bytes, arena.footprint_bytes, arena.peak_footprint_bytes);
    add(stats.allocation, count, 0);
    add(stats.active, count, 0);
    add(stats.segment, 1, 0);
  }

  // The storages whose bytes lie in the session's arena, from its low end on; one that others share bytes with once.
  static std::vector<const Block*> in_arena(Session& session) {
    std::vector<const Block*> found;
    for (const Block* block : session.lasting.books.all())
      if (block->region != nullptr && session.memory.holds(*block)) found.push_back(block);
    const auto offset = [](const Block* block) { return block->region->offset; };
    std::sort(found.begin(), found.end(), [&](const Block* a, const Block* b) { return offset(a) < offset(b); });
    found.erase(std::unique(found.begin(), found.end(), [&](const Block* a, const Block* b) { return offset(a) == offset(b); }), found.end());
    return found;
  }

  caching::SegmentInfo segment_of(Session& session) const {
    caching::SegmentInfo segment;
    segment.device = static_cast<DeviceIndex>(device_->index());
    segment.address = reinterpret_cast<size_t>(session.memory.arena->base());
    segment.stream = device_->compute();
    segment.is_large = true;
    const auto add = [&](size_t end, size_t requested, bool is_allocated) {
      if (end <= segment.total_size) return;
      caching::BlockInfo block;
      block.size = end - segment.total_size;
      block.requested_size = requested;
      block.allocated = block.active = is_allocated;
      segment.blocks.push_back(block);
      segment.total_size = end;
      segment.requested_size += requested;
      if (is_allocated) segment.allocated_size += block.size, segment.active_size += block.size;
    };
    for (const Block* block : in_arena(session)) {
      add(block->region->offset, 0, false);
      add(block->region->end(), block->bytes, true);
    }
    add(std::max(session.memory.arena->footprint(), segment.total_size), 0, false);
    return segment;
  }

  template <typename Native>
  static void mark_begin(Native& allocator, DeviceIndex device) {
    if constexpr (requires { allocator.markCaptureBegin(device); }) allocator.markCaptureBegin(device);
  }
  template <typename Native>
  static void mark_end(Native& allocator, DeviceIndex device) {
    if constexpr (requires { allocator.markCaptureEnd(device); }) allocator.markCaptureEnd(device);
  }
  template <typename Native>
  static std::shared_ptr<c10::GatheredContext> context_of(Native& allocator, const void* pointer) {
    if constexpr (requires { allocator.getContextForPointer(pointer); }) return allocator.getContextForPointer(pointer);
    return nullptr;
  }
  template <typename Native>
  static void attach_rejection(Native& allocator, caching::OutOfMemoryObserver observer) {
    if constexpr (requires { allocator.attachOomRejectionObserver(std::move(observer)); })
      allocator.attachOomRejectionObserver(std::move(observer));
  }
  template <typename Native>
  static at::DataPtr allocate_at(Native& allocator, size_t bytes, void* address) {
    if constexpr (requires { allocator.allocateWithAddress(bytes, address); })
      return allocator.allocateWithAddress(bytes, address);
    TORCH_CHECK(false, "this torch cannot allocate at an address");
  }

  CudaDevice* device_ = nullptr;
  std::atomic<int> pools_{0};  // that allocations are being sent to
  std::mutex pooled_mutex_;
  std::unordered_set<const void*> pooled_;
  std::vector<Stretch> pool_stretches_;
};

Adaptor& instance() {
  static auto* adaptor = new Adaptor;  // never destroyed: storages name it as their allocator
  return *adaptor;
}

}  // namespace

WithoutSession::WithoutSession() : before_(std::exchange(is_without_session, true)) {}
WithoutSession::~WithoutSession() { is_without_session = before_; }

CUDAAllocator& native_allocator() {
  CUDAAllocator* own = native.load();
  return own != nullptr ? *own : *caching::get();
}

CUDAAllocator& adaptor() { return instance(); }

void install_adaptor(CudaDevice& device) {
  instance().find_pools();
  instance().serve(&device);
  CUDAAllocator* before = caching::allocator.exchange(&instance());
  if (before != &instance()) {
    native.store(before);
    c10::SetAllocator(c10::DeviceType::CUDA, &instance(), /*priority=*/0);
  }
}

bool in_memory_pool(const void* address) { return instance().is_pooled(address); }

// Not if somebody else has put theirs in front of it: then it goes on handing everything on.
void remove_adaptor() {
  CUDAAllocator* ours = &instance();
  if (caching::allocator.compare_exchange_strong(ours, native.load()))
    c10::SetAllocator(c10::DeviceType::CUDA, native.load(), /*priority=*/0);
}

}  // namespace memfit::cuda
