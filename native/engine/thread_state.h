// ThreadState: what the running outermost op of one thread uses.
// Plain data: the frame of that op, from its begin to its end.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "failure.h"
#include "needs.h"
#include "op_window.h"
#include "paging/access.h"
#include "recipe.h"
#include "split_call.h"

namespace memfit {

struct Block;
struct OpInfo;

// Whether the calling thread is one that carries out collectives: it reads and writes by raw pointers between ops.
bool carries_out_collectives();

// Whether ops of a kind are under way: one, and those that it calls.
class OpsUnderWay {
 public:
  void op_begins(bool is_one, int depth) {
    if (is_one && outermost_ == 0) outermost_ = depth;
  }
  void op_ends(int depth) {
    if (outermost_ == depth) outermost_ = 0;
  }
  explicit operator bool() const { return outermost_ != 0; }
  bool is_outermost(int depth) const { return outermost_ == depth; }

 private:
  int outermost_ = 0;  // its depth; 0: there is none
};

struct ThreadState {
  int depth = 0;
  OpsUnderWay verified;
  OpsUnderWay adapting;  // that do with less memory than they ask for
  OpsUnderWay working;   // that do more than hand on what they are given: they may read what others have returned to them
  int leaf = 0;         // the depth of the op whose call may be kept as a recipe; 0: there is none
  uint64_t first_id = 0;  // what it makes has ids from here on
  std::shared_ptr<const Recipe> recipe;
  bool captures = false;  // the plan has its op run again, or needs its recipe
  bool tries = false;     // it is recorded: what may lie over what is tried, and what is made from what is kept for that
  std::vector<std::pair<uint64_t, uint64_t>> handovers;  // where they do: the input and the output of its op, by id
  std::vector<Block*> gave;  // inputs of the op that runs whose place its output has taken
  Block* over = nullptr;     // for a trial: in whose place its next storage is to lie,
  uint64_t heir = 0;         // and which one does
  std::vector<std::shared_ptr<const Recipe>> captured;
  bool defers = false;  // its op hands on what it is given: that comes in with the op that reads it
  std::unique_ptr<SplitCall> split;  // the call that is on its way to its kernel
  std::vector<Block*> streamed;      // what it will read where it is
  std::vector<const Block*> sliced;  // what its calls could read in slices, if they were to,
  size_t sliced_output_bytes = 0, slice_bytes = 0;  // and make so; and the most that slices would take at a time
  size_t parts_bytes = 0;  // what it would need in parts
  bool makes_outputs = false;        // what it allocates is an output of the op that runs in slices,
  bool is_slicing = false;           // or a slice's, and no storage of the program's
  bool was_split = false;            // a call of its op's ran in slices, and needed less
  size_t whole_workspace = 0;        // than what such calls had allocated when they were tried, whole
  bool recomputing = false;  // its ops run again
  bool on_trial = false;  // what it does is for a comparison alone: no plan, and no limit, gives way to that
  uint32_t again = 0;        // 1 more than the plan's op that they are; 0: none
  std::vector<Block*> given;  // to the collective that runs,
  size_t given_from = 0;      // which has made what it has touched from here on,
  int given_depth = 0;        // and its depth; 0: none runs
  size_t made_before = 0;     // it began: what collectives had made (`Scratch::made`)
  bool keeps = false;         // what it allocates stays where it is until the C++ function that runs has returned
  bool carries_out = carries_out_collectives();  // it is one of gloo's
  int suspended = 0;         // frames of the same thread that wait for that
  bool in_frame = false;  // it has an op that counts, from its beginning to its end
  bool running = false;   // which has started
  bool starting = false;  // the op has its inputs brought in: it holds no raw pointers yet
  bool stepped_aside = false;  // since when any of them may have left again
  bool aside = false;     // runs on another stream than the compute stream, in its order
  size_t followed = 0;    // as far as its first so many storages go
  bool remade = false;    // something was made again there for the op that is about to begin
  bool at_once = false;  // its op has begun by AtOnce
  bool gave_way = false;  // has let everybody else go first, once
  bool joined = false;    // its op is one of the iteration's: it uses storages of the session, or makes one
  uint64_t serial = 0;
  uint64_t session = 0;  // in which its op began
  const OpInfo* op = nullptr;
  std::vector<Block*> touched;  // active until the op ends; a block may be listed twice
  std::vector<Block*> resting;  // used by its op, and not now
  std::vector<Block*> wrote;           // of those, the ones that it was said to write to
  std::vector<Block*> missing;         // and those to be brought in
  std::vector<c10::Storage> foreign;   // ordinary memory to be adopted
  OpWindow window;  // what it allocates
  size_t allocated = 0;  // in all
  size_t largest = 0;  // the largest storage it has touched or allocated
  size_t input_bytes = 0;
  size_t expected = 0;  // what one of its calls allocated when that was tried in slices
  size_t promised = 0;  // what it may still allocate, as far as is known
  Needs::Known need;  // what has been looked up of its need
  uint64_t need_key = 0;    // the op and the sizes of its inputs' storages
  uint64_t shape_key = 0;   // the rest that decides what it allocates: its inputs' shapes, lists of numbers, and choices
  uint64_t course = 0;      // the plan's iteration in which it began,
  size_t planned_op = 0;    // as which of the plan's ops
  int64_t row = -1;  // the recorder's
  uint64_t waited_ns = 0;  // for room and for its inputs, while recording
  int64_t source = -1;           // the line of its op, and autograd's number of it; known while recording
  int64_t sequence_number = -1;
  uint64_t recording = 0;
  std::string tensors;  // shapes, gathered only when memory is tight
  Failure failure;      // raised from the op's next allocation
  bool maps = false;    // storages that it uses, or makes, may be mapped
  Access access = Access::kStream;
  size_t announced = 0;      // bytes that it said it makes, at the most; 0: it may make any
  size_t operand_bytes = 0;  // of all its inputs, the mapped ones too
  bool untold = false;  // and, if it makes none, from the next one of all

  // Its ops are none of the program's: neither recorded nor planned, nor is what they allocate.
  bool is_apart() const { return recomputing || carries_out; }
  // On a device that compares no bytes, only a verified op, with those it calls, is believed to leave its inputs as they
  // were. (What runs again was believed the first time.)
  bool doubts(const Device& device) const { return device.is_asynchronous() && !verified && !recomputing; }
  // The op is over, or forgotten: `let_go(block)` of each that it has on its list.
  template <typename LetGo>
  void end(const LetGo& let_go) {
    for (Block* block : touched) let_go(*block);
    touched.clear();
    wrote.clear();
    missing.clear();
    foreign.clear();
    streamed.clear();
    resting.clear();
    aside = false;
    followed = 0;
    row = -1;
  }
};
ThreadState& this_thread();
// Its op, in words.
std::string op_under_way(const ThreadState& thread);

}  // namespace memfit
