#include "slab.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "../ranges.h"
#include "cuda_device.h"
#include "locked_pieces.h"

namespace memfit::cuda {

namespace {

constexpr size_t kBuffer = size_t{16} << 20;

// Of a copy, at a time: what a program copies itself meanwhile waits for one piece of it and not for all.
constexpr size_t kAtATime = size_t{32} << 20;

void copy(CudaDevice& device, void* to, const void* from, size_t bytes) {
  if (device.copy_stream() == device.compute()) device.compute_moves_on();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device.copy_stream()), "copying between the GPU and the host");
}

class Slab final : public Medium {
 public:
  Slab(CudaDevice& device, size_t capacity)
      : device_(device), capacity_(round_up(capacity, Tier::kAlignment)), pieces_(device.index(), capacity_) {}
  ~Slab() override { (void)cudaDeviceSynchronize(); }

  void write(size_t offset, const void* from, size_t size) override {
    claim(offset, size);
    OnDevice guard(device_.index());
    each_piece(offset, size, [&](char* at, size_t done, size_t n) {
      copy(device_, at, static_cast<const char*>(from) + done, n);
    });
  }
  void read(size_t offset, void* to, size_t size) override {
    OnDevice guard(device_.index());
    each_piece(offset, size, [&](char* at, size_t done, size_t n) { copy(device_, static_cast<char*>(to) + done, at, n); });
  }
  // Nothing: a copy from there may not have begun yet, and its place is used again in the streams' order.
  void discard(size_t, size_t) override {}
  void claim(size_t offset, size_t size) override {
    if (offset + size > capacity_)
      throw TierFailure("the host tier is full (" + std::to_string(capacity_) + " bytes); use --tier ram+disk:PATH");
    pieces_.reach(offset + size);
  }
  bool is_memory() const override { return true; }
  // What an op does there is in the streams' order, as copies are.
  char* address(size_t offset, size_t size) override {
    OnDevice guard(device_.index());
    return pieces_.in_one_stretch(offset, size);
  }
  bool is_direct() const override { return true; }
  std::string name() const override { return "ram"; }

 private:
  template <typename Action>
  void each_piece(size_t offset, size_t size, const Action& action) {
    for (size_t done = 0; done < size;) {
      const size_t at = offset + done, n = std::min({size - done, LockedPieces::kPiece - at % LockedPieces::kPiece, kAtATime});
      action(pieces_.at(at), done, n);
      done += n;
    }
  }

  CudaDevice& device_;
  size_t capacity_;
  LockedPieces pieces_;
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
