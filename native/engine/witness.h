// The witness, for tests: what operators write to, beside what they are said to write to, and composites beside what those
// that they call write to.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace memfit {

struct OpInfo;

struct Testimony {
  int64_t calls = 0;    // with an argument that it is not said to write to
  int64_t changed = 0;  // that changed one
  std::set<std::string> written;  // arguments that were changed, said or not
  int64_t composed = 0;  // calls, if it is a composite,
  int64_t opaque = 0;    // and those in which bytes were written by none of what it called
};

void set_witness(bool on);
std::map<std::string, Testimony> testimonies();

// Before an operator runs, and after it. Null when nobody asks.
std::unique_ptr<at::ObserverContext> witness(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
void testify(at::ObserverContext* context, c10::ArrayRef<c10::IValue> outputs);

}  // namespace memfit
