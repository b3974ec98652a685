#include "slab.h"

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "../ranges.h"
#include "cuda_device.h"

namespace memfit::cuda {

namespace {

// Locked at a time. Copies are split where two such pieces meet: the driver knows each by itself.
constexpr size_t kPiece = size_t{256} << 20;
constexpr size_t kBuffer = size_t{16} << 20;

// The NUMA node that the GPU is attached to; -1 when the system does not say.
int node_of(int device) {
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess) return -1;
  std::string name(bus);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

void prefer_node(void* address, size_t bytes, int node) {
  if (node < 0 || node >= 64) return;
  unsigned long mask = 1ul << node;
  (void)syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, &mask, 64ul, 0u);  // a wish; without it, it is only slower
}

void copy(CudaDevice& device, void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device.copy_stream()), "copying between the GPU and the host");
}

class Slab final : public Medium {
 public:
  Slab(CudaDevice& device, size_t capacity) : device_(device), capacity_(round_up(capacity, Tier::kAlignment)) {
    void* slab = mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) throw TierFailure(std::string("the host tier cannot reserve its addresses (") + strerror(errno) + "); choose fewer with --tier ram:BYTES");
    slab_ = static_cast<char*>(slab);
    prefer_node(slab_, capacity_, node_of(device.index()));
  }
  ~Slab() override {
    (void)cudaDeviceSynchronize();
    for (size_t offset = 0; offset < locked_; offset += kPiece) (void)cudaHostUnregister(slab_ + offset);
    munmap(slab_, capacity_);
  }

  void write(size_t offset, const void* from, size_t size) override {
    if (offset + size > capacity_)
      throw TierFailure("the host tier is full (" + std::to_string(capacity_) + " bytes); use --tier ram+disk:PATH");
    OnDevice guard(device_.index());
    lock_up_to(offset + size);
    each_piece(offset, size, [&](size_t at, size_t done, size_t n) {
      copy(device_, slab_ + at, static_cast<const char*>(from) + done, n);
    });
  }
  void read(size_t offset, void* to, size_t size) override {
    OnDevice guard(device_.index());
    each_piece(offset, size, [&](size_t at, size_t done, size_t n) { copy(device_, static_cast<char*>(to) + done, slab_ + at, n); });
  }
  // Nothing: a copy from there may not have begun yet, and its place is used again in the streams' order.
  void discard(size_t, size_t) override {}
  bool is_direct() const override { return true; }
  std::string name() const override { return "ram"; }

 private:
  template <typename Action>
  static void each_piece(size_t offset, size_t size, const Action& action) {
    for (size_t done = 0; done < size;) {
      size_t at = offset + done, n = std::min(size - done, kPiece - at % kPiece);
      action(at, done, n);
      done += n;
    }
  }

  void lock_up_to(size_t end) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (locks_ && locked_ < end) {
      size_t bytes = std::min(kPiece, capacity_ - locked_);
      cudaError_t error = cudaHostRegister(slab_ + locked_, bytes, cudaHostRegisterDefault);
      if (error == cudaSuccess) {
        locked_ += bytes;
        continue;
      }
      (void)cudaGetLastError();
      locks_ = false;
      TORCH_WARN("memfit: the system does not lock host memory (", cudaGetErrorString(error), ") beyond ", locked_,
                 " bytes, so swaps are slower and wait for the GPU; raise `ulimit -l`, or choose fewer bytes with --tier ram:BYTES");
    }
  }

  CudaDevice& device_;
  size_t capacity_;
  char* slab_;
  std::mutex mutex_;
  size_t locked_ = 0;
  bool locks_ = true;
};

class Buffered final : public Medium {
 public:
  Buffered(CudaDevice& device, std::unique_ptr<Medium> inner) : device_(device), inner_(std::move(inner)) {}

  void write(size_t offset, const void* from, size_t size) override {
    OnDevice guard(device_.index());
    std::lock_guard<std::mutex> lock(out_.mutex);
    for (size_t done = 0; done < size; done += kBuffer) {
      size_t n = std::min(kBuffer, size - done);
      copy(device_, out_.bytes(), static_cast<const char*>(from) + done, n);
      wait();
      inner_->write(offset + done, out_.bytes(), n);
    }
  }
  void read(size_t offset, void* to, size_t size) override {
    OnDevice guard(device_.index());
    std::lock_guard<std::mutex> lock(in_.mutex);
    for (size_t done = 0; done < size; done += kBuffer) {
      size_t n = std::min(kBuffer, size - done);
      inner_->read(offset + done, in_.bytes(), n);
      copy(device_, static_cast<char*>(to) + done, in_.bytes(), n);
      wait();
    }
  }
  void discard(size_t offset, size_t size) override { inner_->discard(offset, size); }
  std::string name() const override { return inner_->name(); }

 private:
  struct Buffer {
    ~Buffer() { (void)cudaFreeHost(memory); }
    void* bytes() {
      if (memory == nullptr) check(cudaMallocHost(&memory, kBuffer), "locking a buffer for copies");
      return memory;
    }
    std::mutex mutex;
    void* memory = nullptr;
  };

  void wait() { check(cudaStreamSynchronize(device_.copy_stream()), "waiting for a copy"); }

  CudaDevice& device_;
  std::unique_ptr<Medium> inner_;
  Buffer out_, in_;
};

}  // namespace

std::unique_ptr<Medium> make_slab(CudaDevice& device, size_t capacity) { return std::make_unique<Slab>(device, capacity); }

std::unique_ptr<Medium> through_buffer(CudaDevice& device, std::unique_ptr<Medium> inner) {
  return std::make_unique<Buffered>(device, std::move(inner));
}

}  // namespace memfit::cuda
