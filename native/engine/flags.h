// Flags: what threads ask of the engine without its mutex. They outlive sessions; a session's end clears them.
#pragma once

#include <atomic>

namespace memfit {

class Device;

struct Flags {
  std::atomic<Device*> governed{nullptr};  // the device of the session that is active
  std::atomic<bool> inert{false};          // that session has been inherited: this process is a child of its own
  std::atomic<bool> records{false};
  std::atomic<bool> takes_interpreter{false};  // before the mutex: torch's allocator wants it when it is called
  std::atomic<bool> has_notices{false};
  std::atomic<bool> splits{false};         // ops that do not fit run in slices
  std::atomic<bool> repeats{false};        // a plan has ops run again
  std::atomic<bool> drops{false};          // what has to leave without a plan is dropped where that is sound and pays
  std::atomic<bool> tracks{false};         // what ops do is kept, of all or of a plan's: what is written to is no longer what it was
};

}  // namespace memfit
