// Device: the memory that a session's storages live in, and how their bytes move.
//
// A host does what it is told at once. An accelerator does it later, in the order of its compute stream: whatever is
// asked for here takes its turn in that order, and the calling thread does not wait unless the call says so.
// An interface: all that the engine ever asks of a device, of which a host answers half with nothing.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "address_space.h"

namespace memfit {

class Lane;
class Medium;
class Tier;

// Memory of the host's that a device's ops reach where it is. What is asked for takes its turn in the compute stream's order.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual char* address() const = 0;
  // Its beginning comes to the device, at most so many bytes of it; returns how many of the device's they take from now on,
  virtual size_t come(size_t most) = 0;
  // until it goes back.
  virtual void go_home() = 0;
};

class Device {
 public:
  explicit Device(c10::Device name) : name_(name) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  c10::Device name() const { return name_; }
  bool has(c10::Device other) const { return other.type() == name_.type() && (other.is_cpu() || other == name_); }
  // As who asks for memory names it: "cuda" is the current one, and may be this.
  bool may_be(c10::Device other) const { return has(other) || (other.type() == name_.type() && !other.has_index()); }

  // The alignment that its own allocator gives every storage: at such addresses kernels take the same path.
  virtual size_t alignment() const = 0;
  // Its memory is given out in so many bytes, at the low end of an arena and at an offset of one: what is left of a budget
  // beyond the last whole page cannot be used.
  size_t page() const { return page_at(0); }
  virtual size_t page_at(size_t offset) const { return (void)offset, 1; }
  // The arena's limit under a budget (0: none): no more than there is, in whole pages. 0: the budget is below one page.
  virtual size_t limit(size_t budget) const = 0;
  // So many addresses, of which never more than `bytes` have something behind them. Raises std::bad_alloc.
  virtual std::unique_ptr<AddressSpace> reserve(size_t addresses, size_t bytes) = 0;

  // The allocator that torch brings, and the one that stands in for it while a session is active.
  virtual c10::Allocator& ordinary() = 0;
  virtual c10::Allocator& own() = 0;
  virtual void install() = 0;
  // Libraries take a workspace for good in each thread that calls them: here those do it that train. What the device itself
  // takes for the session it gives back when it cools down. Neither is called with the mutex held.
  virtual void warm_up() {}
  virtual void cool_down() {}
  // A session has ended; `in_use`: memory of its arena still is.
  virtual void session_ended(bool in_use) = 0;
  // The ordinary allocator notes which line of Python calls it.
  virtual bool keeps_history() const { return false; }
  // The program has chosen where this ordinary memory lies (a memory pool): it is not adopted.
  virtual bool is_placed(const void* address) const { return (void)address, false; }
  // Memory that the ordinary allocator gave out, and that `copy` may have yet to read, goes back to it.
  virtual void free_ordinary(void* memory) { ordinary().raw_deleter()(memory); }
  // Memory that the ordinary allocator keeps for later goes back to the system.
  virtual void release_cached() {}
  // `action` is called when the device has no more memory, before anybody is told: it may give some up.
  virtual void on_exhausted(std::function<void()> action) { (void)action; }
  // `address` was given out by the ordinary allocator, as far as can be told.
  virtual bool allocated(const void* address) const = 0;

  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // `copying`, which reads bytes that are as they were before the `moment` began, is done before whatever is asked for next,
  // and need not wait for what is under way since then. A moment is one of the engine's clock; `now` is this one, and
  // `epoch` a number that changes when what was asked for earlier may no longer be passed.
  struct Moments {
    uint64_t idle_since, now, epoch;
  };
  virtual void copy_early(const Moments& moments, const std::function<void()>& copying) { (void)moments, copying(); }
  // As `copy`, where the two may overlap. False: it would take too long; nothing is done.
  virtual bool slide(void* to, const void* from, size_t bytes) = 0;
  // Of bytes as they are when everything that was asked for so far is done, which is waited for. Each raises TierFailure
  // when there is no memory for it. (A comparison may use up the bytes of the first: nobody may need them any more.)
  virtual bool have_same_bytes(void* spent, const void* other, size_t bytes) = 0;
  virtual uint64_t fingerprint_of(const void* address, size_t bytes) = 0;
  // Returns when everything that was asked for so far is done.
  virtual void finish() {}

  // A tier of host memory, and another tier for which what lies there must pass through host memory.
  virtual std::unique_ptr<Medium> slab(size_t capacity) = 0;
  virtual std::unique_ptr<Medium> through_host(std::unique_ptr<Medium> inner) = 0;
  // nullptr: its ops reach none. Raises TierFailure when there is no more.
  virtual std::unique_ptr<HostMemory> host_memory(size_t bytes) { return (void)bytes, nullptr; }
  // For tests of the order of copies: each begins late by a random time, at most `longest_us`, where that is possible.
  virtual void delay_copies(int64_t longest_us) { (void)longest_us; }
  // Lanes' copies that are begun between these two need wait for no op that is begun meanwhile.
  virtual void begin_together() {}
  virtual void end_together() {}
  // The lane for one direction's copies from and to `tier`.
  virtual std::unique_ptr<Lane> make_lane(const Tier& tier) = 0;

  // The compute stream, for who runs ops in its order whatever stream the calling thread is in; none on a host.
  virtual std::optional<c10::Stream> compute_stream() const { return std::nullopt; }
  // Whether the calling thread's ops run beside the compute stream, and how they are put into its order: `follow`
  // before such an op, `lead` after it.
  virtual bool is_aside() const { return false; }
  virtual void follow() {}
  virtual void lead() {}
  // The storage at `address` is freed now.
  virtual void released(const void* address) { (void)address; }

  // A ticket for this moment in the compute stream's order, and its time (ns). Tickets are good until `restart_clock`.
  virtual bool is_asynchronous() const { return false; }
  virtual int64_t stamp() = 0;
  virtual int64_t time_of(int64_t ticket) { return ticket; }
  virtual void restart_clock() {}
  // An iteration has ended: adds those since the session's first end whose time (ns) has become known to `known` and `ns`.
  virtual void note_iteration(uint64_t& known, uint64_t& ns) = 0;

 private:
  c10::Device name_;
};

// While it exists, copies begin together.
class Together {
 public:
  explicit Together(Device& device) : device_(device) { device_.begin_together(); }
  ~Together() { device_.end_together(); }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

 private:
  Device& device_;
};

// The one CPU.
Device& host();
// By torch's name. Raises std::invalid_argument for one that this engine was not built for, or that is not there.
Device& find_device(c10::Device name);

}  // namespace memfit
