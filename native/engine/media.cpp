// The media a tier can lie on: a slab of memory, a file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "descriptors.h"
#include "tier.h"

namespace memfit {

namespace {

constexpr size_t kChunk = size_t{64} << 20;      // one system call moves at most this much
constexpr size_t kPunch = size_t{1} << 20;       // smaller discards are not worth a system call

class Ram final : public Medium {
 public:
  explicit Ram(size_t capacity) : capacity_(capacity) {
    void* slab = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED)
      throw TierFailure("the ram tier cannot reserve " + std::to_string(capacity) + " bytes of addresses (" +
                        strerror(errno) + "); choose fewer with --tier ram:BYTES, or use --tier disk:PATH");
    slab_ = static_cast<char*>(slab);
  }
  ~Ram() override { munmap(slab_, capacity_); }

  void write(size_t offset, const void* from, size_t size) override {
    claim(offset, size);
    std::memcpy(slab_ + offset, from, size);
  }
  void read(size_t offset, void* to, size_t size) override { std::memcpy(to, slab_ + offset, size); }
  void discard(size_t offset, size_t size) override {
    if (size >= kPunch) madvise(slab_ + offset, size, MADV_DONTNEED);
  }
  void claim(size_t offset, size_t size) override {
    if (offset + size > capacity_)
      throw TierFailure("the ram tier is full (" + std::to_string(capacity_) + " bytes); use --tier disk:PATH");
  }
  bool is_memory() const override { return true; }
  char* address(size_t offset, size_t) override { return slab_ + offset; }
  std::string name() const override { return "ram"; }

 private:
  size_t capacity_;
  char* slab_;
};

// Some file systems make files only with a name, which a process killed in between would leave behind.
int open_nameless(const std::string& folder) {
  int file = above_standard_streams(open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (file >= 0) return file;
  std::string path = folder + "/memfit-XXXXXX";
  file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0)
    throw TierFailure("the disk tier cannot make a file in '" + folder + "': " + strerror(errno) +
                      "; choose an existing, writable folder with --tier disk:PATH");
  unlink(path.c_str());
  file = above_standard_streams(file);
  if (file < 0) throw TierFailure("the disk tier cannot keep a file open in '" + folder + "': " + strerror(errno) +
                                   "; raise `ulimit -n`");
  return file;
}

class Disk final : public Medium {
 public:
  explicit Disk(std::string folder) : folder_(std::move(folder)), file_(open_nameless(folder_)) {}
  ~Disk() override { close(file_); }

  void write(size_t offset, const void* from, size_t size) override {
    const auto* bytes = static_cast<const char*>(from);
    for (size_t done = 0; done < size;) {
      ssize_t n = pwrite(file_, bytes + done, std::min(kChunk, size - done), static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write", n < 0 ? errno : ENOSPC);
      done += static_cast<size_t>(n);
    }
  }
  void read(size_t offset, void* to, size_t size) override {
    auto* bytes = static_cast<char*>(to);
    for (size_t done = 0; done < size;) {
      ssize_t n = pread(file_, bytes + done, std::min(kChunk, size - done), static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("read", n < 0 ? errno : EIO);
      done += static_cast<size_t>(n);
    }
  }
  void discard(size_t offset, size_t size) override {
    // Best effort: not every file system can punch holes, and reuse of the offsets does not need it.
    if (size >= kPunch)
      (void)!fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(size));
  }
  // Where a file system has no such call, a write will tell.
  void claim(size_t offset, size_t size) override {
    if (fallocate(file_, 0, static_cast<off_t>(offset), static_cast<off_t>(size)) != 0 && (errno == ENOSPC || errno == EFBIG))
      fail("make room", errno);
  }
  void expect(size_t offset, size_t size) override {
    (void)posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(size), POSIX_FADV_WILLNEED);
  }
  std::string name() const override { return "disk:" + folder_; }

 private:
  [[noreturn]] void fail(const char* verb, int error) const {
    std::string message = std::string("the disk tier in '") + folder_ + "' failed to " + verb + ": " + strerror(error);
    struct statvfs info;
    if (error == ENOSPC && fstatvfs(file_, &info) == 0)
      message += " (" + std::to_string(info.f_bavail * info.f_frsize) + " bytes free); free some space or";
    else if (error == EFBIG)
      message += ": it is as large as `ulimit -f` or the file system allows; raise that, or";
    else
      message += "; see what the system's log says of that disk (dmesg), and";
    message += " choose another folder with --tier disk:PATH";
    throw TierFailure(message);
  }

  std::string folder_;
  int file_;
};

}  // namespace

std::unique_ptr<Medium> make_ram(size_t capacity) { return std::make_unique<Ram>(capacity); }
std::unique_ptr<Medium> make_disk(const std::string& folder) { return std::make_unique<Disk>(folder); }

}  // namespace memfit
