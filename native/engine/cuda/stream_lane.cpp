#include "stream_lane.h"

#include <algorithm>
#include <utility>

#include "events.h"

namespace memfit::cuda {

namespace {

// Moments of one copy. In the lane's stream: before and after it; in the compute stream: before and after its wait. Of one
// that is not timed there is only its end.
struct Marks {
  std::unique_ptr<Mark> began, ended, waited_from, waited_until;
  uint64_t number;  // of the copy, in the lane's order
};

Marks& marks_of(Copy& copy) { return *static_cast<Marks*>(copy.marks.get()); }

class StreamLane final : public Lane {
 public:
  explicit StreamLane(CudaDevice& device) : device_(device) {
    OnDevice guard(device_.index());
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream for copies");
  }
  ~StreamLane() override {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamDestroy(stream_);
  }

  void push(std::shared_ptr<Copy> copy) override {
    copy->marks = std::make_shared<Marks>();
    marks_of(*copy).number = ++pushed_;
    try {
      OnDevice guard(device_.index());
      device_.hold_back(stream_, seen_);
      device_.delay(stream_);
      if (copy->is_timed) marks_of(*copy).began = std::make_unique<Mark>(device_.timed_events(), stream_);
      InStream lane(stream_);
      if (copy->direction == Copy::Direction::kOut)
        copy->tier->write(copy->extent, copy->memory, copy->bytes);
      else
        copy->tier->get(copy->extent, copy->memory, copy->bytes);
      marks_of(*copy).ended = std::make_unique<Mark>(copy->is_timed ? device_.timed_events() : device_.events(), stream_);
    } catch (const std::exception& error) {
      copy->error = error.what();
    }
  }

  void wait(Copy& copy) override {
    Marks& marks = marks_of(copy);
    const bool is_behind = marks.number <= std::exchange(awaited_, std::max(awaited_, marks.number));
    if (is_behind && !copy.is_timed) return;  // of another copy that was waited for
    OnDevice guard(device_.index());
    device_.compute_moves_on();
    if (marks.ended == nullptr) return order(device_.events(), stream_, device_.compute());  // a part may be under way
    if (!copy.is_timed) return marks.ended->hold_back(device_.compute());
    marks.waited_from = std::make_unique<Mark>(device_.timed_events(), device_.compute());
    marks.ended->hold_back(device_.compute());
    marks.waited_until = std::make_unique<Mark>(device_.timed_events(), device_.compute());
  }

  bool knows_times(Copy& copy) override {
    Marks& marks = marks_of(copy);
    if (marks.waited_until == nullptr) return true;
    if (!marks.waited_until->has_passed()) return false;
    copy.began = device_.time_of(*marks.began);
    // Counted from the copy's own beginning: the clock's is long ago, and the runtime rounds.
    copy.ended = copy.began + between(*marks.began, *marks.ended);
    copy.waited_from = copy.began + between(*marks.began, *marks.waited_from);
    copy.waited_until = copy.waited_from + between(*marks.waited_from, *marks.waited_until);
    return true;
  }

 private:
  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  uint64_t seen_ = 0;  // the moment of the compute stream that it has waited for last
  uint64_t pushed_ = 0, awaited_ = 0;  // the last copy, and the last that the compute stream has waited for
};

}  // namespace

std::unique_ptr<Lane> make_stream_lane(CudaDevice& device) { return std::make_unique<StreamLane>(device); }

}  // namespace memfit::cuda
