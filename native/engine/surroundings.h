// Surroundings: what decides what an op computes, besides its inputs: torch's settings, and the thread's.
//
// One record for all who have to know: which slices give the same bits (Gate), what is made again (Recipe), and what was
// found by trying (InPlace). A setting of torch's that is in none of its rows must be unable to change what an op computes
// below autograd: tests/running/engine/test_surroundings.py asks this of every setter that there is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace memfit {

class Surroundings {
 public:
  static constexpr size_t kSettings = 47;
  using Values = std::array<int32_t, kSettings>;

  // Those of the calling thread. They live for good, and there are no two that are equal.
  static const Surroundings& now();
  // From now on those of GPUs too, where there is none: for tests.
  static void read_of_gpus();
  // Those with these values for the settings that are named, and otherwise as now: for tests.
  static const Surroundings& of(const std::map<std::string, int32_t>& named);

  const Values& values() const { return values_; }
  std::map<std::string, int32_t> by_name() const;
  uint64_t hash() const { return hash_; }  // the same in every process
  // They differ in settings that all threads have in common.
  bool differ_for_all(const Surroundings& others) const;

 private:
  explicit Surroundings(const Values& values);
  static const Surroundings& only(const Values& values);

  Values values_;
  uint64_t hash_;
  const Surroundings* next_ = nullptr;
};

// The precisions of products: how they are set may be to inherit another, and torch tells only what follows from that.
class Precisions;

// As they were then, while it lives, and afterwards exactly as they were before. What all threads have in common changes
// for the others as well.
class Within {
 public:
  explicit Within(const Surroundings& then);
  ~Within();
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  Within();

  const Surroundings& before_;
  bool differ_ = false;
  std::unique_ptr<const Precisions> precisions_;
};

}  // namespace memfit
