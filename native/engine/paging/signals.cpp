// Page faults by signals: memory that mprotect forbids, and a handler of SIGSEGV. The bytes lie in a file in memory, so that
// they can be there before anybody may look.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "../descriptors.h"
#include "../tier.h"
#include "page_faults.h"

namespace memfit {

namespace {

bool writes(const void* context) {
  const auto* state = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return (state->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  return (void)state, true;  // what is written to that need not be is only copied once more
#endif
}

// A fault is served on the alternate stack of the thread, if that has one (faulthandler's has 16 KiB). It has to be large
// enough for what reads the tier: the thread gets a larger one otherwise, which lasts as long as the thread.
class AlternateStack {
 public:
  AlternateStack() = default;
  AlternateStack(const AlternateStack&) = delete;
  AlternateStack& operator=(const AlternateStack&) = delete;
  ~AlternateStack() {
    if (base_ == nullptr) return;
    stack_t current {};
    stack_t none {};
    none.ss_flags = SS_DISABLE;
    if (sigaltstack(nullptr, &current) == 0 && current.ss_sp == base_) sigaltstack(&none, nullptr);
    munmap(base_, kBytes);
  }

  void enlarge() {
    stack_t current {};
    if (sigaltstack(nullptr, &current) != 0 || (current.ss_flags & SS_DISABLE) != 0 || current.ss_size >= kBytes) return;
    if (base_ == nullptr) {
      void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
      if (base == MAP_FAILED) refuse_mapping("served");
      base_ = base;
    }
    stack_t ours {};
    ours.ss_sp = base_;
    ours.ss_size = kBytes;
    if (sigaltstack(&ours, nullptr) != 0) refuse_mapping("served");
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 10;
  void* base_ = nullptr;
};

thread_local AlternateStack alternate_stack;

class SignalFaults final : public PageFaults {
 public:
  explicit SignalFaults(Serve serve) : serve_(std::move(serve)) {
    current_.store(this);
    take_signal();
  }
  ~SignalFaults() override { current_.store(nullptr); }

  char* reserve(size_t bytes) override {
    take_signal();  // somebody may have taken it since (faulthandler)
    const int file = above_standard_streams(memfd_create("memfit", MFD_CLOEXEC));
    if (file < 0) refuse_mapping("reserved");
    void* base = MAP_FAILED;
    if (ftruncate(file, static_cast<off_t>(bytes)) == 0) base = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) {
      const int error = errno;
      close(file);
      errno = error;
      refuse_mapping("reserved");
    }
    madvise(base, bytes, MADV_DONTFORK);
    std::lock_guard<std::mutex> lock(mutex_);
    stretches_[static_cast<char*>(base)] = {bytes, file};
    return static_cast<char*>(base);
  }
  void release(char* base, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = stretches_.find(base);
    close(found->second.file);
    stretches_.erase(found);
    munmap(base, bytes);
  }

  void fill(char* at, const char* bytes, size_t size, bool is_writable) override {
    const Place place = place_of(at);
    for (size_t done = 0; bytes != nullptr && done < size;) {
      const ssize_t n = pwrite(place.file, bytes + done, size - done, static_cast<off_t>(place.offset + done));
      if (n > 0)
        done += static_cast<size_t>(n);
      else if (errno != EINTR)
        refuse_mapping("filled");
    }
    set_writable(at, size, is_writable);
  }
  void set_writable(char* at, size_t size, bool is_writable) override {
    if (mprotect(at, size, is_writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) refuse_mapping("protected");
  }
  void drop(char* at, size_t size) override {
    const Place place = place_of(at);
    mprotect(at, size, PROT_NONE);
    (void)!fallocate(place.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(place.offset), static_cast<off_t>(size));
  }
  const char* name() const override { return "signals"; }

 private:
  struct Stretch {
    size_t bytes;
    int file;
  };
  struct Place {
    int file = -1;  // none of its own
    size_t offset = 0;
  };

  Place place_of(const char* at) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = stretches_.upper_bound(const_cast<char*>(at));
    if (next == stretches_.begin()) return {};
    const auto& [base, stretch] = *std::prev(next);
    const auto offset = static_cast<size_t>(at - base);
    return offset < stretch.bytes ? Place{stretch.file, offset} : Place{};
  }

  static void take_signal() {
    alternate_stack.enlarge();
    struct sigaction ours {}, theirs {};
    ours.sa_sigaction = &on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &ours, &theirs);
    if ((theirs.sa_flags & SA_SIGINFO) == 0 || theirs.sa_sigaction != &on_signal) before_ = theirs;
  }

  static void on_signal(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    SignalFaults* faults = current_.load();
    auto* at = static_cast<char*>(info->si_addr);
    if (faults != nullptr && info->si_code > 0 && faults->place_of(at).file >= 0)
      faults->serve_(at, writes(context));
    else
      pass_on(signal, info, context);
    errno = error;
  }
  // Somebody else's: who had the signal before gets it, and a crash is as it would be without us.
  static void pass_on(int signal, siginfo_t* info, void* context) {
    const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
    const bool comes_back = info->si_code <= 0 && passing_.load() == self;
    if (comes_back) before_ = {};  // they had it after us, too (faulthandler), and are done with it: nobody else is left
    passing_.store(self);
    hand_over(signal, info, context);
    passing_.store(0);
  }
  static void hand_over(int signal, siginfo_t* info, void* context) {
    if ((before_.sa_flags & SA_SIGINFO) != 0) return before_.sa_sigaction(signal, info, context);
    if (before_.sa_handler != SIG_DFL && before_.sa_handler != SIG_IGN) return before_.sa_handler(signal);
    sigaction(SIGSEGV, &before_, nullptr);
    if (info->si_code <= 0) ::raise(signal);  // it was sent, and does not come again by itself
  }

  static inline std::atomic<SignalFaults*> current_{nullptr};
  static inline struct sigaction before_ {};
  static inline std::atomic<pid_t> passing_{0};  // the thread that has passed a signal on, until they return

  Serve serve_;
  std::mutex mutex_;
  std::map<char*, Stretch> stretches_;
};

}  // namespace

std::unique_ptr<PageFaults> faults_by_signals(PageFaults::Serve serve) { return std::make_unique<SignalFaults>(std::move(serve)); }

}  // namespace memfit
