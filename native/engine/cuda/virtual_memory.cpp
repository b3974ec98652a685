#include "virtual_memory.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../ranges.h"
#include "../tier.h"
#include "events.h"

namespace memfit::cuda {

namespace {

constexpr size_t kFine = size_t{8} << 30;    // up to this offset memory comes in the driver's pages,
constexpr size_t kCoarse = size_t{32} << 20;  // and beyond it in these, which need no exactness: 0.4 % of what lies below

// The driver's entry points, without linking against it: a machine without a GPU has no driver.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemAddressReserve) address_reserve;
  decltype(&cuMemAddressFree) address_free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuGetErrorString) error_string;
};

template <typename Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
#else
  cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
    throw std::invalid_argument(std::string("the CUDA driver has no ") + name + "; memfit needs one of CUDA 12 or newer");
  function = reinterpret_cast<Function>(address);
}

const Driver& driver() {
  static const Driver functions = [] {
    Driver d;
    find(d.granularity, "cuMemGetAllocationGranularity");
    find(d.address_reserve, "cuMemAddressReserve");
    find(d.address_free, "cuMemAddressFree");
    find(d.create, "cuMemCreate");
    find(d.release, "cuMemRelease");
    find(d.map, "cuMemMap");
    find(d.unmap, "cuMemUnmap");
    find(d.set_access, "cuMemSetAccess");
    find(d.error_string, "cuGetErrorString");
    return d;
  }();
  return functions;
}

std::string text(CUresult result) {
  const char* words = nullptr;
  driver().error_string(result, &words);
  return words != nullptr ? words : "error " + std::to_string(static_cast<int>(result));
}

void check_driver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw TierFailure(std::string(what) + ": " + text(result));
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}

// The GPUs that are in use and can reach `device`.
std::set<int> peers_in_use(int device) {
  std::set<int> peers;
  for (int other = 0; other < c10::cuda::device_count(); ++other) {
    int can = 0;
    if (other == device || !c10::cuda::hasPrimaryContext(static_cast<c10::DeviceIndex>(other))) continue;
    if (cudaDeviceCanAccessPeer(&can, other, device) == cudaSuccess && can != 0) peers.insert(other);
  }
  return peers;
}

class VirtualMemory;

// All that are reserved, and the GPUs that may reach a GPU's.
struct Reserved {
  std::mutex mutex;
  std::vector<VirtualMemory*> ranges;
  std::map<int, std::set<int>> peers;
};

Reserved& reserved() {
  static auto* all = new Reserved;  // an arena may outlive what is destroyed at exit
  return *all;
}

class VirtualMemory final : public AddressSpace {
 public:
  VirtualMemory(int device, size_t addresses, size_t most, Neighbours neighbours)
      : device_(device), page_(page_bytes(device, 0)), coarse_(page_bytes(device, kFine)), most_(most), neighbours_(std::move(neighbours)),
        handles_(round_up(addresses, addresses < kFine ? page_ : coarse_) / page_) {
    CUresult result = driver().address_reserve(&base_, size(), 0, 0, 0);
    if (result != CUDA_SUCCESS) throw std::bad_alloc();
    const std::set<int> peers = peers_in_use(device);
    std::lock_guard<std::mutex> lock(reserved().mutex);
    reserved().ranges.push_back(this);
    reserved().peers[device].insert(peers.begin(), peers.end());
  }
  ~VirtualMemory() override {
    {
      std::lock_guard<std::mutex> lock(reserved().mutex);
      std::erase(reserved().ranges, this);
    }
    try {
      drop(0, size());
    } catch (const TierFailure&) {
      return;  // the context is gone, and its memory with it
    }
    driver().address_free(base_, size());
  }

  char* base() const override { return reinterpret_cast<char*>(base_); }
  size_t size() const override { return handles_.size() * page_; }
  size_t page_at(size_t offset) const override { return offset < kFine ? page_ : coarse_; }
  int device() const { return device_; }
  bool has(const void* address) const { return address >= base() && address < base() + size(); }

  // All that is behind the addresses now. (`reserved().mutex` is held.)
  void open_again() {
    OnDevice guard(device_);
    for (auto first = open_.begin(); (first = std::find(first, open_.end(), true)) != open_.end();) {
      const auto last = std::find(first, open_.end(), false);
      set_access(static_cast<size_t>(first - open_.begin()), static_cast<size_t>(last - open_.begin()));
      first = last;
    }
  }

  void back(size_t from, size_t to) override {
    if (to <= solid_) return;
    OnDevice guard(device_);
    const size_t last = round_up(to, page_) / page_;
    for (size_t page = from / page_; page < last; page = piece_at(page).end)
      if (!is_mapped(page)) page = map_run(page, last);
    set(needed_, {from / page_, last}, true);
    while (solid_ < size() && needed_[solid_ / page_]) solid_ += page_;
  }

  void drop(size_t from, size_t to) override {
    const size_t first = round_up(from, page_) / page_, last = std::min(to / page_, handles_.size());
    bool has_waited = false;
    for (size_t page = first; page < last; ++page) {
      if (!is_mapped(page)) continue;
      needed_[page] = false;
      solid_ = std::min(solid_, page * page_);
      const Piece piece = piece_at(page);
      if (page + 1 < std::min(piece.end, last) || is_needed(piece)) continue;
      OnDevice guard(device_);
      if (!std::exchange(has_waited, true)) check(cudaDeviceSynchronize(), "waiting for the GPU before memory is given back");
      unmap(piece);
    }
  }

 private:
  // Pages that are mapped together.
  struct Piece {
    size_t first, end;
  };

  Piece piece_at(size_t page) const {
    const size_t pages = page < kFine / page_ ? 1 : coarse_ / page_, first = page / pages * pages;
    return {first, first + pages};
  }
  bool is_mapped(size_t page) const { return handles_[piece_at(page).first] != 0; }
  bool is_needed(Piece piece) const {
    bool any = false;
    for (size_t page = piece.first; page < piece.end; ++page) any |= needed_[page];
    return any;
  }
  static void set(std::vector<bool>& pages, Piece piece, bool value) {
    for (size_t page = piece.first; page < piece.end; ++page) pages[page] = value;
  }

  // Memory behind the pieces from that of `page` on, up to `last` or one that has some; returns the last of their pages.
  size_t map_run(size_t page, size_t last) {
    const size_t first = piece_at(page).first;
    size_t end = first;
    try {
      for (; end < last && !is_mapped(end); end = piece_at(end).end) map(piece_at(end));
      allow(first, end);
    } catch (...) {  // pages that nobody may touch would count as bytes
      for (size_t other = first; other < end; other = piece_at(other).end) unmap(piece_at(other));
      throw;
    }
    return end - 1;
  }

  void map(Piece piece) {
    const size_t bytes = (piece.end - piece.first) * page_;
    neighbours_.make_way(mapped_ * page_ + bytes, most_);
    CUmemAllocationProp prop = properties(device_);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver().create(&handle, bytes, &prop, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      neighbours_.give_up();
      result = driver().create(&handle, bytes, &prop, 0);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) throw TierFailure(exhausted());
    check_driver(result, "asking the driver for memory");
    result = driver().map(base_ + piece.first * page_, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) driver().release(handle);
    check_driver(result, "putting memory behind the arena");
    handles_[piece.first] = handle;
    mapped_ += piece.end - piece.first;
  }

  void unmap(Piece piece) {
    {
      std::lock_guard<std::mutex> lock(reserved().mutex);
      set(open_, piece, false);
    }
    check_driver(driver().unmap(base_ + piece.first * page_, (piece.end - piece.first) * page_), "taking memory from behind the arena");
    driver().release(handles_[piece.first]);
    handles_[piece.first] = 0;
    mapped_ -= piece.end - piece.first;
  }

  void allow(size_t first, size_t last) {
    std::lock_guard<std::mutex> lock(reserved().mutex);
    set_access(first, last);
    set(open_, {first, last}, true);
  }

  void set_access(size_t first, size_t last) {
    std::vector<CUmemAccessDesc> access = {{{CU_MEM_LOCATION_TYPE_DEVICE, device_}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    for (int peer : reserved().peers[device_])
      access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, peer}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    check_driver(driver().set_access(base_ + first * page_, (last - first) * page_, access.data(), access.size()),
                 "opening memory to the GPU");
  }

  std::string exhausted() const {
    return "cuda:" + std::to_string(device_) + " has no more memory: the arena has " + std::to_string(mapped_ * page_) +
           " of " + std::to_string(most_) + " bytes, and the rest is in use beside it (nvidia-smi shows by whom); free "
           "it, or give a smaller --budget";
  }

  int device_;
  size_t page_, coarse_;
  size_t most_;  // bytes
  Neighbours neighbours_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;  // by the first page of each piece; 0: nothing is behind it
  std::vector<bool> needed_ = std::vector<bool>(handles_.size());  // pages whose bytes somebody has asked for
  std::vector<bool> open_ = std::vector<bool>(handles_.size());  // pages that may be touched; `reserved().mutex` guards it
  size_t mapped_ = 0;  // pages
  size_t solid_ = 0;  // there are bytes behind everything below
};

}  // namespace

size_t page_bytes(int device, size_t offset) {
  CUmemAllocationProp prop = properties(device);
  size_t bytes = 0;
  check_driver(driver().granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "asking for the size of a page");
  return offset < kFine ? bytes : std::max(bytes, kCoarse);
}

std::unique_ptr<AddressSpace> reserve(int device, size_t addresses, size_t bytes, Neighbours neighbours) {
  return std::make_unique<VirtualMemory>(device, addresses, bytes, std::move(neighbours));
}

void open_to(int device, int peer) {
  std::lock_guard<std::mutex> lock(reserved().mutex);
  if (!reserved().peers[device].insert(peer).second) return;
  for (VirtualMemory* range : reserved().ranges)
    if (range->device() == device) range->open_again();
}

bool is_reserved(const void* address) {
  std::lock_guard<std::mutex> lock(reserved().mutex);
  return std::any_of(reserved().ranges.begin(), reserved().ranges.end(), [&](auto* range) { return range->has(address); });
}

}  // namespace memfit::cuda
