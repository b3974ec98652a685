// Remakings: which storages a plan drops after which op, and which ops run again before which, so that they are back.
//
// The plan's ops are numbered with those that run again. An op's call is kept as a recipe only if it is to run again.
// A drop is tried before it is trusted: the first time a copy goes to the tier as well, and what comes out of the re-run
// is compared with what the copy was made of. A storage that came out different, or not at all, is copied whenever it is
// dropped, until there is another plan. A storage that nothing uses any more is dropped for good: no op of the plan's makes
// it again. It is tried at the end of its life, when most of what it is made from has gone: that its bytes can be had until
// then, by all ops of the plan's that take part, is known from then on.
// It has a method for each thing that happens to a drop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "discarding.h"
#include "recipe.h"

namespace memfit {

struct RemakeTable {
  static constexpr uint32_t kFirstTime = UINT32_MAX;
  static constexpr uint32_t kForGood = UINT32_MAX;

  struct Drop {
    uint32_t storage = 0;  // among those of the swaps
    uint32_t after = 0;    // its bytes go when this op has ended,
    uint32_t before = 0;   // and are there again when this one begins,
    uint32_t take = 0;     // at the place of this take; kForGood: they do not come back
  };
  std::vector<uint32_t> repeats;  // by op: the one whose call it repeats, or kFirstTime; empty: nothing is made again
  std::vector<Drop> drops;
  std::vector<uint32_t> kept;  // the ops whose calls are to be kept beside those that run again
  std::unordered_map<uint32_t, uint32_t> carried;  // of those that outlive the iteration: by the ordinal of their
                                                   // allocation, the take that gives them their last place in it
  bool empty() const { return drops.empty() && kept.empty(); }
  // By op, whether it does; empty: none does.
  std::vector<char> runs_again() const;
  uint64_t hash() const;
};

struct TriedCalls;
using Recipes = std::vector<std::shared_ptr<const Recipe>>;

class Remakings {
 public:
  enum class Verdict : uint8_t { kUntried, kSame, kCannot };
  static constexpr uint64_t kHasNot = UINT64_MAX;
  struct Failed {
    uint32_t drop;
    std::string why;
  };

  // `tried`: of what its calls make no copy is taken where it is known to come out the same; null: nothing is. `came_back`:
  // what `came_back()` was when the same plan was in force before; empty: nothing is known.
  Remakings(RemakeTable table, Discarding& discarding, TriedCalls* tried = nullptr, const std::vector<uint64_t>& came_back = {});

  // Its call is to be kept; and the recipes that it was kept as.
  bool is_kept(size_t op) const { return recipes_.count(static_cast<uint32_t>(op)) != 0; }
  void keep(size_t op, Recipes recipes);
  const Recipes& recipes(size_t again) const { return recipes_.at(table_.repeats[again]); }

  // The drops after an op; and whether any storage is away that is to be there before one.
  std::vector<uint32_t> drops_after(size_t op) const { return of(by_after_, op); }
  uint32_t storage_of(uint32_t drop) const { return table_.drops[drop].storage; }
  // In an iteration that `is_another` than planned nothing is learnt of it.
  void drop(uint32_t number, Block& block, bool is_another);
  bool is_any_away(size_t before) const;
  // `made` has a value that a re-run has made. The block whose it is, if it is to be there before `before`; none otherwise.
  Block* expects(size_t before, const Value& value) const;
  // It has come, or has not: what of it is known from now on.
  void came_back(size_t before, const Block& block);
  void failed(size_t before, const Value& value, const std::string& why);
  // All that was to be made before the op has been, or cannot be. (`is_another`: as of `drop`.)
  void end(size_t before, bool is_another);
  void iteration_ends();
  // What was dropped for good and is to be tried before an op, when it has mostly been freed: its value, and the
  // fingerprint of its bytes. It is asked for once.
  struct Trial {
    uint32_t drop;
    ValueRef value;
    uint64_t print;
  };
  bool is_trial_due(size_t before) const;
  std::vector<Trial> trials(size_t before);
  void end_trial(const Trial& trial);
  void fail_trial(const Trial& trial, std::string why) { refuse(states_[trial.drop], std::move(why)); }
  // The take that gives a dropped storage its last place in an iteration, by the ordinal of its allocation.
  std::optional<uint32_t> last_take(uint32_t ordinal) const;

  // The take whose place a block that has not come back has to itself.
  std::optional<uint32_t> place_of(const Block& block) const;

  // An input of the op does not give its place to an output.
  void refuse_handover(size_t op) { refused_.insert(static_cast<uint32_t>(op)); }

  struct Tried {
    size_t untried = 0;
    std::vector<Failed> failed;
    std::vector<uint32_t> refused;  // ops whose inputs did not give their places
  };
  Tried tried() const;
  std::vector<uint64_t> came_back() const;  // by drop, the calls with which it has, the same; kHasNot
  size_t held() const;  // bytes of the heap

 private:
  struct State {
    ValueRef value;  // while its bytes are away
    uint64_t block = 0;  // whose they are
    uint64_t departure = 0;  // with which they went: from a later one they come back another way
    Verdict verdict = Verdict::kUntried;
    uint64_t calls = 0;  // of which that is known, where bytes are not compared whenever they come back (TriedCalls::key_of)
    std::string why;
  };
  using Drop = RemakeTable::Drop;
  using ByOp = std::unordered_map<uint32_t, std::vector<uint32_t>>;

  static uint64_t calls_for(const Block& block);
  bool is_for_good(uint32_t drop) const { return table_.drops[drop].take == RemakeTable::kForGood; }
  static std::vector<uint32_t> of(const ByOp& drops, size_t op);
  static bool is_away(const State& state);
  static void refuse(State& state, std::string why);
  // Whether what the plan's calls make for a value is known to come out the same; none where one of them is not known.
  std::optional<bool> comes_out_again(const Value& value) const;
  std::string differing(const Value& value) const;  // the op of the call that is known not to
  void trust(const Value& value);  // the call that has made it

  RemakeTable table_;
  Discarding& discarding_;
  TriedCalls* tried_;
  std::vector<State> states_;  // by drop
  std::vector<Trial> trials_;
  std::set<uint32_t> refused_;
  ByOp by_after_, by_before_;
  std::unordered_map<uint32_t, Recipes> recipes_;  // by op, of those that run again
};

}  // namespace memfit
