// Page faults by userfaultfd in user mode, for which no privilege is needed (Linux 5.11). System calls that touch absent bytes
// fail with EFAULT.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../descriptors.h"
#include "../signals.h"
#include "../tier.h"
#include "page_faults.h"

namespace memfit {

namespace {

uint64_t as_number(const char* address) { return reinterpret_cast<uint64_t>(address); }

class Userfaults final : public PageFaults {
 public:
  Userfaults(int file, Serve serve, Mortality mortality) : file_(file), serve_(std::move(serve)), mortality_(mortality) {
    wake_up_ = above_standard_streams(eventfd(0, EFD_CLOEXEC));
    if (wake_up_ < 0) refuse_mapping("watched");
    self_ = above_standard_streams(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    listener_ = std::thread([this] { listen(); });
  }
  ~Userfaults() override {
    const uint64_t one = 1;
    (void)!write(wake_up_, &one, sizeof one);
    std::thread last;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_closing_ = true;
      last = std::move(listener_);
    }
    if (last.joinable()) last.join();
    for (std::thread& dead : dead_) dead.join();
    close(wake_up_);
    if (self_ >= 0) close(self_);
    close(file_);
  }

  char* reserve(size_t bytes) override {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) refuse_mapping("reserved");
    madvise(base, bytes, MADV_NOHUGEPAGE);  // a page of 2 MiB would come in for one of 4 KiB
    madvise(base, bytes, MADV_DONTFORK);    // a child would find zeros
    uffdio_register range{{as_number(static_cast<char*>(base)), bytes}, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP, 0};
    if (ioctl(file_, UFFDIO_REGISTER, &range) != 0) {
      const int error = errno;
      munmap(base, bytes);
      errno = error;
      refuse_mapping("registered");
    }
    return static_cast<char*>(base);
  }
  void release(char* base, size_t bytes) override { munmap(base, bytes); }

  void fill(char* at, const char* bytes, size_t size, bool is_writable) override {
    static const std::vector<char> zeros(size_t{1} << 20);
    for (size_t done = 0; done < size;) {
      const size_t part = bytes != nullptr ? size - done : std::min(size - done, zeros.size());
      uffdio_copy copy{as_number(at + done), as_number(bytes != nullptr ? bytes + done : zeros.data()), part,
                       is_writable ? 0 : uint64_t{UFFDIO_COPY_MODE_WP}, 0};
      if (ioctl(file_, UFFDIO_COPY, &copy) == 0)
        done += part;
      else if (errno == EAGAIN && copy.copy > 0)
        done += static_cast<size_t>(copy.copy);
      else if (errno != EAGAIN && errno != EINTR)
        refuse_mapping("filled");
    }
  }
  void set_writable(char* at, size_t size, bool is_writable) override {
    uffdio_writeprotect range{{as_number(at), size}, is_writable ? 0 : uint64_t{UFFDIO_WRITEPROTECT_MODE_WP}};
    while (ioctl(file_, UFFDIO_WRITEPROTECT, &range) != 0)
      if (errno != EAGAIN && errno != EINTR) refuse_mapping("protected");
  }
  void drop(char* at, size_t size) override { madvise(at, size, MADV_DONTNEED); }
  // The other processors are told once for many stretches, which takes longer than all else.
  void drop_all(const std::vector<Stretch>& stretches) override {
    size_t done = 0;
    for (std::vector<iovec> part; done < stretches.size() && self_ >= 0; done += part.size()) {
      part.clear();
      size_t bytes = 0;
      for (size_t i = done; i < std::min(stretches.size(), done + IOV_MAX); ++i) {
        part.push_back({stretches[i].at, stretches[i].size});
        bytes += stretches[i].size;
      }
      if (syscall(SYS_process_madvise, self_, part.data(), part.size(), MADV_DONTNEED, 0) == static_cast<long>(bytes)) continue;
      close(std::exchange(self_, -1));  // Linux before 6.13, or a container, refuses it
      break;
    }
    for (; done < stretches.size(); ++done) drop(stretches[done].at, stretches[done].size);
  }
  void wake(char* at, size_t size) override {
    uffdio_range range{as_number(at), size};
    ioctl(file_, UFFDIO_WAKE, &range);
  }
  const char* name() const override { return "userfaultfd"; }

 private:
  void listen() {
    leave_signals_to_others();
    const Successor successor(*this);
    std::array<pollfd, 2> files{pollfd{file_, POLLIN, 0}, pollfd{wake_up_, POLLIN, 0}};
    while (true) {
      if (poll(files.data(), files.size(), -1) < 0 && errno != EINTR) return;
      if (files[1].revents != 0) return;
      uffd_msg message;
      if (read(file_, &message, sizeof message) != sizeof message || message.event != UFFD_EVENT_PAGEFAULT) continue;
      const auto& fault = message.arg.pagefault;
      serve_(reinterpret_cast<char*>(fault.address), (fault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0);
      if (++served_ == mortality_.dies_after) return;
    }
  }

  // Whoever waits for a fault waits for ever if nobody serves it: another thread takes over from one that ends; where
  // none can be had, it does not end.
  struct Successor {
    explicit Successor(Userfaults& faults) : of(faults) {}
    ~Successor() {
      if (!of.hand_on()) of.listen();
    }
    Userfaults& of;
  };
  bool hand_on() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closing_) return true;
    try {
      std::thread next([this] { listen(); });
      dead_.push_back(std::exchange(listener_, std::move(next)));
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  int file_, wake_up_ = -1;
  int self_ = -1;  // this process, as a file descriptor
  Serve serve_;
  Mortality mortality_;
  std::atomic<uint64_t> served_{0};
  std::mutex mutex_;
  std::thread listener_;
  std::vector<std::thread> dead_;
  bool is_closing_ = false;
};

}  // namespace

std::unique_ptr<PageFaults> faults_by_userfaultfd(PageFaults::Serve serve, Mortality mortality) {
  const int file = above_standard_streams(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  if (file < 0) return nullptr;
  uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
  if (ioctl(file, UFFDIO_API, &api) != 0) {
    close(file);
    return nullptr;
  }
  try {
    return std::make_unique<Userfaults>(file, std::move(serve), mortality);
  } catch (const std::system_error&) {  // no thread can be had
    close(file);
    return nullptr;
  }
}

}  // namespace memfit
