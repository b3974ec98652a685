// Draws: the random numbers that an op draws, to be drawn once more.
//
// An op that is given a generator is given a copy of it when it runs again, so that other threads' draws from the shared
// one are as they would have been. One that has no argument for it (a GPU's dropout) draws from the device's own: that
// takes the state of then for as long as the op runs.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>

#include "device.h"

namespace memfit {

class Draws {
 public:
  // Of an op that is about to begin, from the generator that it is `given`, otherwise from the device's; `is_argument`: it
  // has an argument for it. Nothing while another thread draws, and where the device's cannot take a state of then.
  static std::unique_ptr<Draws> of(const Device& device, const at::Generator& given, bool is_argument);
  // The op has drawn what it draws. False while another thread draws.
  bool end();
  // A generator that draws the same.
  at::Generator again() const { return state_.clone(); }

  // The device's own generator draws the same once more, for an op that has no argument for it, while this lives.
  class Repeated {
   public:
    explicit Repeated(const Draws* draws);
    ~Repeated();
    Repeated(const Repeated&) = delete;
    Repeated& operator=(const Repeated&) = delete;
    // Raises std::runtime_error unless the op has drawn what it drew then, and nobody else has drawn anything.
    void check();

   private:
    const Draws* draws_;
    at::Generator shared_, again_, before_;
  };

 private:
  at::Generator state_;   // as it was when the op began; nobody draws from it
  at::Generator shared_;  // the device's, for an op that has no argument for it,
  uint64_t ended_ = 0;    // and where that was when the op had ended
};

}  // namespace memfit
