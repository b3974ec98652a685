#include "locked_pieces.h"

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "../signals.h"
#include "../tier.h"
#include "events.h"

namespace memfit::cuda {

namespace {

constexpr size_t kAhead = 4;  // of so many pieces in use one more is locked ahead, and one besides
constexpr size_t kPopulating = 8;  // threads, where there are as many cores
constexpr size_t kHugePage = size_t{2} << 20;

// The NUMA node that the GPU is attached to; -1 when the system does not say.
int node_of(int device) {
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess) return -1;
  std::string name(bus);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string path = "/sys/bus/pci/devices/" + name + "/numa_node";
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  int node = -1;
  return file != nullptr && std::fscanf(file.get(), "%d", &node) == 1 ? node : -1;
}

void prefer_node(void* address, size_t bytes, int node) {
  if (node < 0 || node >= 64) return;
  unsigned long mask = 1ul << node;
  (void)syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, &mask, 64ul, 0u);  // a wish; without it, it is only slower
}

#ifdef MADV_POPULATE_WRITE
void populate(char* memory, size_t bytes) { (void)madvise(memory, bytes, MADV_POPULATE_WRITE); }
#else
void populate(char*, size_t) {}
#endif

}  // namespace

// The driver would populate each page as it locks it, one by one and small. (The kernel zeroes pages at some GB/s a core.)
class LockedPieces::Populating {
 public:
  Populating(char* memory, size_t bytes) : rest_(memory), end_(memory + bytes) {
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kPopulating);
    const size_t part = (bytes / threads / kHugePage + 1) * kHugePage;
    try {
      for (; rest_ < end_; rest_ += std::min(part, bytes_left()))
        threads_.emplace_back([from = rest_, size = std::min(part, bytes_left())] {
          leave_signals_to_others();
          populate(from, size);
        });
    } catch (const std::system_error&) {  // the system has no thread left
    }
  }
  ~Populating() {
    for (std::thread& thread : threads_) thread.join();
  }
  Populating(const Populating&) = delete;
  Populating& operator=(const Populating&) = delete;

 private:
  size_t bytes_left() const { return static_cast<size_t>(end_ - rest_); }

  char *rest_, *end_;  // what no thread populates the driver does
  std::vector<std::thread> threads_;
};

LockedPieces::LockedPieces(int device, size_t capacity) : device_(device), capacity_(capacity) {
  void* addresses = mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) throw TierFailure(std::string("the host tier cannot reserve its addresses (") + strerror(errno) + "); choose fewer with --tier ram:BYTES");
  addresses_ = static_cast<char*>(addresses);
  prefer_node(addresses_, capacity_, node_of(device_));
}

LockedPieces::~LockedPieces() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  ahead_.reset();
  for (size_t i = 0; i < pieces_.size(); i = end_of_stretch(i)) {
    if (pieces_[i].kind == Kind::kRegistered) (void)cudaHostUnregister(pieces_[i].memory);
    if (pieces_[i].kind == Kind::kAllocated) (void)cudaFreeHost(pieces_[i].memory);
  }
  munmap(addresses_, capacity_);
}

void LockedPieces::reach(size_t end) {
  std::unique_lock<std::mutex> lock(mutex_);
  const size_t needed = (end + kPiece - 1) / kPiece, all = (capacity_ + kPiece - 1) / kPiece;
  wanted_ = std::max(wanted_, std::min(needed + 1 + needed / kAhead, all));
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
    changed_.wait(lock, [&] { return pieces_.size() >= needed; });
  } catch (const std::system_error&) {  // the system has no thread left
    while (pieces_.size() < needed) add(make(pieces_.size(), /*is_last=*/true));
  }
  warn_if_ordinary(needed);
}

char* LockedPieces::at(size_t offset) {
  std::lock_guard<std::mutex> lock(mutex_);
  return pieces_.at(offset / kPiece).memory + offset % kPiece;
}

char* LockedPieces::in_one_stretch(size_t offset, size_t bytes) {
  const size_t first = offset / kPiece, last = (offset + bytes - 1) / kPiece;
  std::lock_guard<std::mutex> lock(mutex_);
  if (last >= pieces_.size()) return nullptr;
  if (first != last && pieces_[first].first != pieces_[last].first && !make_one(first, last)) return nullptr;
  if (pieces_[first].kind == Kind::kOrdinary) return nullptr;
  const size_t begin = pieces_[first].first;
  void* on_device = nullptr;
  if (cudaHostGetDevicePointer(&on_device, pieces_[begin].memory, 0) == cudaSuccess)
    return static_cast<char*>(on_device) + (offset - begin * kPiece);
  (void)cudaGetLastError();
  return nullptr;
}

// Nobody else gives the GPU copies from there meanwhile: the engine's mutex is held. What cannot be locked as one is locked
// again as it was, or else is ordinary memory.
bool LockedPieces::make_one(size_t first, size_t last) {
  const size_t begin = pieces_[first].first, end = end_of_stretch(last);
  for (size_t i = begin; i < end; ++i)
    if (pieces_[i].kind != Kind::kRegistered) return false;
  check(cudaDeviceSynchronize(), "waiting for the GPU before its host memory is locked anew");
  for (size_t i = begin; i < end; i = end_of_stretch(i)) check(cudaHostUnregister(pieces_[i].memory), "unlocking host memory");
  const bool is_one = cudaHostRegister(pieces_[begin].memory, bytes_of(begin, end), cudaHostRegisterDefault) == cudaSuccess;
  if (!is_one) (void)cudaGetLastError();
  for (size_t i = begin; i < end; ++i) {
    pieces_[i].first = is_one ? begin : i;
    if (is_one || cudaHostRegister(pieces_[i].memory, bytes_of(i, i + 1), cudaHostRegisterDefault) == cudaSuccess) continue;
    (void)cudaGetLastError();
    pieces_[i].kind = Kind::kOrdinary;
    --locked_;
  }
  return is_one;
}

size_t LockedPieces::end_of_stretch(size_t number) const {
  size_t end = number + 1;
  while (end < pieces_.size() && pieces_[end].first == pieces_[number].first) ++end;
  return end;
}

size_t LockedPieces::bytes_of(size_t first, size_t end) const { return std::min(end * kPiece, capacity_) - first * kPiece; }

void LockedPieces::run() {
  leave_signals_to_others();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || pieces_.size() < wanted_; });
    if (closing_) return;
    const size_t number = pieces_.size();
    const bool is_last = number + 1 >= wanted_;
    lock.unlock();
    const Piece piece = make(number, is_last);
    lock.lock();
    add(piece);
    changed_.notify_all();
  }
}

void LockedPieces::add(Piece piece) {
  pieces_.push_back(piece);
  locked_ += piece.kind != Kind::kOrdinary;
}

LockedPieces::Piece LockedPieces::make(size_t number, bool is_last) {
  char* memory = addresses_ + number * kPiece;
  Piece piece{memory, Kind::kOrdinary, number};
  if (!refusal_.empty()) return piece;
  try {
    OnDevice guard(device_);
    lock_memory(piece, number, is_last);
  } catch (const TierFailure& failure) {
    refusal_ = failure.what();
  }
  return piece;
}

// While one is locked the pages of the next come into being. In some containers the driver locks what it allocates itself, and
// nothing else.
void LockedPieces::lock_memory(Piece& piece, size_t number, bool is_last) {
  const size_t bytes = bytes_of(number, number + 1);
  cudaError_t error = cudaSuccess;
  if (!allocates_) {
    if (!ahead_) ahead_ = std::make_unique<Populating>(piece.memory, bytes);
    ahead_.reset();  // which waits
    if (!is_last) ahead_ = std::make_unique<Populating>(piece.memory + kPiece, bytes_of(number + 1, number + 2));
    error = cudaHostRegister(piece.memory, bytes, cudaHostRegisterDefault);
    if (error == cudaSuccess) return (void)(piece.kind = Kind::kRegistered);
    (void)madvise(piece.memory, bytes, MADV_DONTNEED);
  }
  void* own = nullptr;
  const cudaError_t refused = cudaHostAlloc(&own, bytes, cudaHostAllocDefault);
  if (refused == cudaSuccess) {
    piece.memory = static_cast<char*>(own), piece.kind = Kind::kAllocated;
    allocates_ = true;
    return;
  }
  (void)cudaGetLastError();
  refusal_ = cudaGetErrorString(error != cudaSuccess ? error : refused);
}

void LockedPieces::warn_if_ordinary(size_t needed) {
  if (warned_ || needed <= locked_) return;
  warned_ = true;
  TORCH_WARN("memfit: the system does not lock host memory (", refusal_, ") beyond ", locked_ * kPiece,
             " bytes, so swaps are slower and wait for the GPU; raise `ulimit -l`, or choose fewer bytes with --tier ram:BYTES");
}

}  // namespace memfit::cuda
