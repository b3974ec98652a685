// Failure: what is told of an op that could not have its bytes.
#pragma once

#include <cstddef>
#include <string>

namespace memfit {

// Why an op could not have the bytes it needs.
struct Failure {
  enum class Kind { kNone, kBudget, kTier } kind = Kind::kNone;
  std::string message;
  std::string why;
  std::string remedy;
  std::string op;
  std::string tensors;
  std::string source;
  size_t required_bytes = 0;
};

// The event, its reason, and a remedy.
std::string in_words(const Failure& failure);
// As a Python exception of memfit's own types.
[[noreturn]] void raise(const Failure& failure);
std::string format_bytes(size_t bytes);

}  // namespace memfit
