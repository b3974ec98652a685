// Warnings of torch's that the program is not to hear, or not to hear twice: where memfit runs an op more than once.
#pragma once

#include <c10/util/Exception.h>

#include <mutex>
#include <set>
#include <string>

#include "at_fork.h"

namespace memfit {

// The calling thread's are said to nobody while this lives; and one that is said once in a process counts as not said.
class Unheard final : public c10::WarningHandler {
 public:
  Unheard() : guard_(this) { all().begin(); }
  ~Unheard() override { all().end(); }
  Unheard(const Unheard&) = delete;
  Unheard& operator=(const Unheard&) = delete;
  void process(const c10::Warning&) override {}

 private:
  // Those of torch that are said once are noted as said unless they are always said, which is the whole process's.
  class Always {
   public:
    void begin() {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (count_++ != 0) return;
      before_ = c10::WarningUtils::get_warnAlways();
      c10::WarningUtils::set_warnAlways(true);
    }
    void end() {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (--count_ == 0) c10::WarningUtils::set_warnAlways(before_);
    }

   private:
    FreeAtFork<std::mutex> mutex_;
    int count_ = 0;
    bool before_ = false;
  };
  static Always& all() {
    static auto* instance = new Always;
    return *instance;
  }

  c10::WarningUtils::WarningHandlerGuard guard_;
};

// What the kernel of one call says in several runs the program hears as from one run.
class SaidOnce final : public c10::WarningHandler {
 public:
  SaidOnce() : outer_(c10::WarningUtils::get_warning_handler()), guard_(this) {}
  ~SaidOnce() override = default;
  SaidOnce(const SaidOnce&) = delete;
  SaidOnce& operator=(const SaidOnce&) = delete;

  // Another run begins: what those before it have said it does not say again.
  void run_begins() { earlier_.merge(now_); }
  void process(const c10::Warning& warning) override {
    if (earlier_.count(warning.msg()) != 0) return;
    now_.insert(warning.msg());
    outer_->process(warning);
  }

 private:
  c10::WarningHandler* outer_;
  c10::WarningUtils::WarningHandlerGuard guard_;
  std::set<std::string> earlier_, now_;
};

}  // namespace memfit
