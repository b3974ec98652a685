// Uses: the storages that an op touches are marked in use until it ends.
#pragma once

#include <c10/core/Storage.h>

#include "adoption.h"
#include "books.h"
#include "forecast.h"
#include "ghosts.h"
#include "memory.h"
#include "operands.h"
#include "recorder.h"
#include "thread_state.h"

namespace memfit {

class Uses {
 public:
  Uses(Books& books, const Memory& memory, Forecast& forecast, Recorder& recorder, Ghosts& ghosts, const Adoption& adoption)
      : books_(books), memory_(memory), forecast_(forecast), recorder_(recorder), ghosts_(ghosts), adoption_(adoption) {}

  // It is the session's, or will be once an op reads it.
  bool concerns(const c10::Storage& storage) const;
  // An input of the thread's op. What is away is noted as missing, and ordinary memory as foreign. `is_number`: it is a
  // Python number, which torch turns back by a raw pointer, without an op, to show a call to a mode: it is pinned.
  void touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data, bool is_number = false);
  // One that describes a tensor (the sizes of a nested one) is read through raw pointers at any time, without an op.
  void keep_in_place(ThreadState& thread, const c10::Storage& storage);
  void use(ThreadState& thread, Block& block, bool write);
  // Likewise of what is there, in the session's arena, and which the op has not used yet.
  void use_first(ThreadState& thread, Block& block, bool write);
  // It is not used until it is used again.
  void rest(ThreadState& thread, Block& block);
  // An output. `held`: the op leaves it uninitialised.
  void show(ThreadState& thread, const c10::Storage& storage, Part part, bool held);

 private:
  Block* find(const c10::Storage& storage) const {
    return memory_.device->has(storage.device()) ? books_.find(*storage.unsafeGetStorageImpl()) : nullptr;
  }
  static bool streams(const ThreadState& thread, const Block& block);
  bool is_first(ThreadState& thread, Block& block);
  void touch_first(ThreadState& thread, Block& block);
  void take_up(ThreadState& thread, Block& block);
  void count(ThreadState& thread, const Block& block) const;

  Books& books_;
  const Memory& memory_;
  Forecast& forecast_;
  Recorder& recorder_;
  Ghosts& ghosts_;
  const Adoption& adoption_;
};

}  // namespace memfit
