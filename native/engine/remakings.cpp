#include "remakings.h"

#include <algorithm>

#include "block.h"
#include "hash.h"
#include "held.h"
#include "tried_calls.h"
#include "values.h"

namespace memfit {

namespace {

bool is_planned(const Value& value) { return value.recipe && value.recipe->is_planned; }

}  // namespace

std::vector<char> RemakeTable::runs_again() const {
  std::vector<char> again(repeats.size());
  std::transform(repeats.begin(), repeats.end(), again.begin(), [](uint32_t op) { return op != kFirstTime; });
  return again;
}

uint64_t RemakeTable::hash() const {
  uint64_t hash = drops.size();
  for (const Drop& drop : drops)
    for (uint32_t each : {drop.storage, drop.after, drop.before, drop.take}) hash = mix(hash, each);
  for (const std::vector<uint32_t>* ops : {&repeats, &kept})
    for (uint32_t op : *ops) hash = mix(hash, op);
  return hash;
}

Remakings::Remakings(RemakeTable table, Discarding& discarding, TriedCalls* tried, const std::vector<uint64_t>& came_back)
    : table_(std::move(table)), discarding_(discarding), tried_(tried), states_(table_.drops.size()) {
  for (uint32_t op : table_.repeats)
    if (op != RemakeTable::kFirstTime) recipes_[op];
  for (uint32_t op : table_.kept) recipes_[op];
  for (uint32_t drop = 0; drop < table_.drops.size(); ++drop) {
    by_after_[table_.drops[drop].after].push_back(drop);
    if (!is_for_good(drop)) by_before_[table_.drops[drop].before].push_back(drop);
    if (!came_back.empty() && came_back[drop] != kHasNot) states_[drop].verdict = Verdict::kSame, states_[drop].calls = came_back[drop];
  }
}

void Remakings::keep(size_t op, Recipes recipes) { recipes_.at(static_cast<uint32_t>(op)) = std::move(recipes); }

std::vector<uint32_t> Remakings::of(const ByOp& drops, size_t op) {
  auto found = drops.find(static_cast<uint32_t>(op));
  return found == drops.end() ? std::vector<uint32_t>() : found->second;
}

void Remakings::refuse(State& state, std::string why) {
  state.verdict = Verdict::kCannot;
  state.why = std::move(why);
  state.value.reset();
}

// What the plan makes again for it.
std::optional<bool> Remakings::comes_out_again(const Value& value) const {
  return tried_ != nullptr && is_planned(value) ? tried_->come_out_again(Values::chain(value, is_planned)) : std::nullopt;
}

std::string Remakings::differing(const Value& value) const {
  const std::vector<const Recipe*> calls = Values::chain(value, is_planned);
  return (*std::find_if(calls.begin(), calls.end(), [&](const Recipe* call) { return tried_->comes_out_again(*call) == false; }))->op->name;
}

// The plan's calls that make what the block has; 0: there are none.
uint64_t Remakings::calls_for(const Block& block) {
  if (!block.value || !is_planned(*block.value)) return 0;
  uint64_t calls = 0;
  for (const Recipe* call : Values::chain(*block.value, is_planned)) calls = mix(calls, TriedCalls::key_of(*call));
  return calls;
}

// It has run again, whatever became of those before it.
void Remakings::trust(const Value& value) {
  if (tried_ != nullptr && value.recipe) tried_->again.emplace(TriedCalls::key_of(*value.recipe), TriedCalls::Again{true, 0});
}

// If the tier has no room either, it stays, and others have to do without its place: better not to drop it again.
void Remakings::drop(uint32_t number, Block& block, bool is_another) {
  State& state = states_[number];
  const auto refuse_for_good = [&](std::string why) {
    if (!is_another) refuse(state, std::move(why));
  };
  state.value.reset();
  state.block = block.id;
  if (!block.is_idle()) return refuse_for_good("its bytes may not leave");
  const uint64_t calls = std::exchange(state.calls, tried_ != nullptr ? calls_for(block) : 0);
  if (state.verdict == Verdict::kSame && state.calls != calls) state.verdict = Verdict::kUntried;
  const bool is_known = state.verdict != Verdict::kUntried || Values::sources(block);
  if (!is_known) refuse_for_good("what it is made from is not known");
  if (is_known && state.verdict != Verdict::kCannot) state.value = block.value;
  if (state.verdict == Verdict::kUntried && state.value) {
    const std::optional<bool> comes_out = comes_out_again(*state.value);
    if (comes_out == true) state.verdict = Verdict::kSame;
    if (comes_out == false) refuse_for_good(differing(*state.value) + ": they came out different");
  }
  state.departure = block.departures + 1;
  if (state.verdict == Verdict::kSame && discarding_.discard(block, Discarding::By::kPlan)) return;
  try {
    discarding_.set_aside(block, /*is_tried=*/state.value != nullptr);
  } catch (const TierFailure& failure) {
    return refuse_for_good(failure.what());
  }
  if (block.resident()) return refuse_for_good("its bytes may not leave");
  if (is_for_good(number) && state.value && state.verdict == Verdict::kUntried) trials_.push_back({number, state.value, block.print});
}

bool Remakings::is_trial_due(size_t before) const {
  return std::any_of(trials_.begin(), trials_.end(), [&](const Trial& trial) { return table_.drops[trial.drop].before <= before; });
}

std::vector<Remakings::Trial> Remakings::trials(size_t before) {
  const auto first_due = std::partition(trials_.begin(), trials_.end(), [&](const Trial& trial) { return table_.drops[trial.drop].before > before; });
  std::vector<Trial> due(first_due, trials_.end());
  trials_.erase(first_due, trials_.end());
  return due;
}

void Remakings::end_trial(const Trial& trial) {
  trust(*trial.value);
  states_[trial.drop].verdict = Verdict::kSame;
  states_[trial.drop].value.reset();
}

bool Remakings::is_away(const State& state) {
  const Block* block = state.value ? state.value->block : nullptr;
  return block != nullptr && !block->resident() && !block->copy && block->departures == state.departure;
}

bool Remakings::is_any_away(size_t before) const {
  const std::vector<uint32_t> drops = of(by_before_, before);
  return std::any_of(drops.begin(), drops.end(), [&](uint32_t drop) { return is_away(states_[drop]); });
}

Block* Remakings::expects(size_t before, const Value& value) const {
  for (uint32_t drop : of(by_before_, before))
    if (states_[drop].value.get() == &value && is_away(states_[drop])) return value.block;
  return nullptr;
}

void Remakings::came_back(size_t before, const Block& block) {
  for (uint32_t drop : of(by_before_, before))
    if (states_[drop].value && states_[drop].value == block.value) {
      if (states_[drop].verdict == Verdict::kUntried) trust(*block.value);
      states_[drop].verdict = Verdict::kSame;
      states_[drop].value.reset();
    }
}

void Remakings::failed(size_t before, const Value& value, const std::string& why) {
  for (uint32_t drop : of(by_before_, before))
    if (states_[drop].value.get() == &value) refuse(states_[drop], why);
}

// What is still away was not made by the ops that were to make it. (It may have died, or have come in for another reason.)
void Remakings::end(size_t before, bool is_another) {
  for (uint32_t drop : of(by_before_, before)) {
    State& state = states_[drop];
    if (is_away(state) && !is_another) refuse(state, "the ops that ran again did not make it");
    state.value.reset();
  }
}

void Remakings::iteration_ends() {
  for (State& state : states_) state.value.reset(), state.block = 0;
  trials_.clear();
  for (auto& [op, recipes] : recipes_) recipes.clear();
}

std::optional<uint32_t> Remakings::last_take(uint32_t ordinal) const {
  auto found = table_.carried.find(ordinal);
  return found == table_.carried.end() ? std::nullopt : std::optional(found->second);
}

// That of its last drop.
std::optional<uint32_t> Remakings::place_of(const Block& block) const {
  const Drop* last = nullptr;
  for (uint32_t drop = 0; drop < states_.size(); ++drop)
    if (states_[drop].block == block.id && (last == nullptr || last->after < table_.drops[drop].after)) last = &table_.drops[drop];
  return last == nullptr || last->take == RemakeTable::kForGood ? std::nullopt : std::optional(last->take);
}

std::vector<uint64_t> Remakings::came_back() const {
  std::vector<uint64_t> calls(states_.size());
  std::transform(states_.begin(), states_.end(), calls.begin(), [](const State& state) { return state.verdict == Verdict::kSame ? state.calls : kHasNot; });
  return calls;
}

Remakings::Tried Remakings::tried() const {
  Tried tried;
  for (uint32_t drop = 0; drop < states_.size(); ++drop) {
    if (states_[drop].verdict == Verdict::kCannot) tried.failed.push_back({drop, states_[drop].why});
    tried.untried += states_[drop].verdict == Verdict::kUntried;
  }
  tried.refused.assign(refused_.begin(), refused_.end());
  return tried;
}

size_t Remakings::held() const {
  size_t held = held_bytes(table_.repeats, table_.drops, states_, trials_);
  for (const auto& [op, recipes] : recipes_)
    for (const auto& recipe : recipes) held += recipe->held();
  return held;
}

}  // namespace memfit
