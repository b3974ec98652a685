// PageFaults: stretches of addresses with nothing behind them, and who is told when one of them is touched.
//
// Two ways: userfaultfd, whose faults a thread of its own serves while the toucher sleeps in the kernel; and signals
// (SIGSEGV on what mprotect forbids), served by the toucher itself, for systems that refuse the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace memfit {

// The size of the pages in which bytes come and go.
constexpr size_t kFaultPage = 4096;

class PageFaults {
 public:
  // Called for each touch of bytes that are not there, or that may not be written to yet. It makes them so, and does not
  // throw. Any thread may call it, several at a time.
  using Serve = std::function<void(char* touched, bool is_write)>;

  struct Stretch {
    char* at;
    size_t size;
  };

  virtual ~PageFaults() = default;
  // Sizes, and addresses but for their base, are multiples of a page. `reserve` and `fill` raise TierFailure.
  virtual char* reserve(size_t bytes) = 0;
  virtual void release(char* base, size_t bytes) = 0;
  // `bytes` (null: zeros) are at `at` from one moment to the next, for reading only unless `is_writable`.
  virtual void fill(char* at, const char* bytes, size_t size, bool is_writable) = 0;
  // Of what is there: it may be written to, or the next write is a fault.
  virtual void set_writable(char* at, size_t size, bool is_writable) = 0;
  // Nothing is there any more.
  virtual void drop(char* at, size_t size) = 0;
  virtual void drop_all(const std::vector<Stretch>& stretches) {
    for (const Stretch& stretch : stretches) drop(stretch.at, stretch.size);
  }
  // Another thread's touch has been served already: who waits looks again.
  virtual void wake(char* at, size_t size) { (void)at, (void)size; }
  virtual const char* name() const = 0;
};

// For tests: the thread that serves ends after so many faults (0: never).
struct Mortality {
  uint64_t dies_after = 0;
};

// Raises TierFailure for the error in `errno`.
[[noreturn]] void refuse_mapping(const char* what);

// nullptr where the system refuses it.
std::unique_ptr<PageFaults> faults_by_userfaultfd(PageFaults::Serve serve, Mortality mortality = {});
// One at a time in a process. Raises TierFailure.
std::unique_ptr<PageFaults> faults_by_signals(PageFaults::Serve serve);

}  // namespace memfit
