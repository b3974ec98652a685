// The interpreter lock, taken for a while or let go of.
//
// Who holds the engine's mutex never waits for it: who needs both takes this one first.
#pragma once

struct _ts;  // Python's state of a thread

namespace memfit {

// Has it, where there is an interpreter.
class WithInterpreter {
 public:
  WithInterpreter();
  ~WithInterpreter();
  WithInterpreter(const WithInterpreter&) = delete;
  WithInterpreter& operator=(const WithInterpreter&) = delete;

 private:
  bool has_;
  int state_ = 0;
};

// Has let go of it, if the thread had it.
class WithoutInterpreter {
 public:
  WithoutInterpreter();
  bool was_held() const { return state_ != nullptr; }
  // Call without any other lock.
  void take_back();

 private:
  _ts* state_;
};

}  // namespace memfit
