// The witness, for tests: which operators leave all that their schema does not mark as written as it was.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>

namespace memfit {

struct OpInfo;

struct Testimony {
  int64_t calls = 0;    // with an argument to look at
  int64_t changed = 0;  // that changed one
};

void set_witness(bool on);
std::map<std::string, Testimony> testimonies();

// Before an operator runs, and after it. Null when nobody asks.
std::unique_ptr<at::ObserverContext> witness(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
void testify(at::ObserverContext* context);

}  // namespace memfit
