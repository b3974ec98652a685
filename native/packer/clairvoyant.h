// The bytes a furthest-next-use policy moves: what any policy may be measured against.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

namespace memfit {

template <typename T>
struct Column {
  const T* data;
  std::size_t size;
  T operator[](std::size_t i) const { return data[i]; }
};

// A trace as columns it does not own. Accesses of op i are rows [access_begin[i], access_begin[i + 1]),
// one row for each distinct storage.
struct TraceColumns {
  Column<std::int64_t> size_bytes, alloc_tick, free_tick;               // by storage
  Column<std::int64_t> first_tick, workspace_bytes;                     // by op
  Column<std::int64_t> access_begin;                                    // by op, and one more
  Column<std::int64_t> access_storage;                                  // by access
  Column<std::uint8_t> access_is_write;                                 // by access
  std::int64_t ticks, alignment;

  std::size_t ops() const { return first_tick.size; }
  std::size_t storages() const { return size_bytes.size; }
  bool born_before(std::size_t storage) const { return alloc_tick[storage] < 0; }
  bool outlives(std::size_t storage) const { return free_tick[storage] == ticks; }
  std::int64_t placed_bytes(std::size_t storage) const {
    return (size_bytes[storage] + alignment - 1) / alignment * alignment;
  }
};

// `required_bytes` is the smallest budget that works, set by op `required_op`; traffic is zero below it.
struct ClairvoyantResult {
  std::int64_t bytes_out = 0, bytes_in = 0;
  std::int64_t required_bytes = 0, required_op = 0;
};

// Its members are the trace by storage and by access, and what lies where so far.
class Clairvoyant {
 public:
  Clairvoyant(const TraceColumns& trace, std::int64_t budget_bytes)
      : trace_(trace),
        budget_(budget_bytes),
        ops_(static_cast<std::int64_t>(trace.ops())),
        storages_(trace.storages()),
        first_use_(trace.storages(), kNever),
        next_use_(trace.access_storage.size, kNever),
        born_after_(trace.ops() + 1),
        freed_after_(trace.ops() + 1) {
    link_recurring();
    find_uses();
    bucket_events();
  }

  // Repeats the iteration until its start looks like its end, and counts the last repetition.
  ClairvoyantResult run(int repetitions = 3) {
    ClairvoyantResult result = largest_working_set();
    if (result.required_bytes > budget_) return result;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      bytes_out_ = bytes_in_ = 0;
      begin(repetition * ops_);
      for (std::int64_t op = 0; op < ops_; ++op) step(op, repetition * ops_);
      end();
    }
    result.bytes_out = bytes_out_;
    result.bytes_in = bytes_in_;
    return result;
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct State {
    bool resident = false;
    bool clean = false;  // while resident: the slower tier holds the same bytes
    std::int64_t next_use = kNever;
  };
  // Furthest next use first; among equals, one that costs nothing to evict.
  using Candidate = std::tuple<std::int64_t, bool, std::size_t>;

  // `heir_[s]` is the storage that plays the part of s in the next iteration: itself, or, for one allocated
  // in this iteration and freed in the next (a gradient), one of its size alive before the iteration.
  void link_recurring() {
    heir_.assign(trace_.storages(), kNone);
    std::map<std::int64_t, std::queue<std::size_t>> left_over;
    for (std::size_t s = 0; s < trace_.storages(); ++s) {
      if (!trace_.born_before(s)) continue;
      if (trace_.outlives(s)) heir_[s] = s;
      else left_over[trace_.size_bytes[s]].push(s);
    }
    for (std::size_t s = 0; s < trace_.storages(); ++s) {
      if (trace_.born_before(s) || !trace_.outlives(s)) continue;
      auto& same_size = left_over[trace_.size_bytes[s]];
      if (same_size.empty()) continue;
      heir_[s] = same_size.front();
      same_size.pop();
    }
  }

  // Times count ops from the iteration's start; a use in the next iteration is `ops_` or more.
  void find_uses() {
    each_access_backwards([&](std::int64_t op, std::size_t, std::size_t s) { first_use_[s] = op; });
    std::vector<std::int64_t> next(trace_.storages(), kNever);
    for (std::size_t s = 0; s < next.size(); ++s)
      if (heir_[s] != kNone) next[s] = later(ops_, first_use_[heir_[s]]);
    each_access_backwards([&](std::int64_t op, std::size_t access, std::size_t s) {
      next_use_[access] = next[s];
      next[s] = op;
    });
    first_use_ = next;  // the same, except that one not used in its own iteration has its heir's
  }

  // Bucket 0 is before the first op, bucket i + 1 within op i or just after it. A storage allocated and freed
  // in one bucket is part of that op's workspace.
  void bucket_events() {
    for (std::size_t s = 0; s < trace_.storages(); ++s) {
      const std::size_t born = bucket(trace_.alloc_tick[s]), freed = bucket(trace_.free_tick[s]);
      if (born == freed && !trace_.born_before(s) && !trace_.outlives(s)) continue;
      if (!trace_.born_before(s)) born_after_[born].push_back(s);
      if (!trace_.outlives(s)) freed_after_[freed].push_back(s);
    }
  }

  std::size_t bucket(std::int64_t tick) const {
    const std::int64_t* begin = trace_.first_tick.data;
    return static_cast<std::size_t>(std::upper_bound(begin, begin + ops_, tick) - begin);
  }

  bool exists_before(std::size_t storage, std::int64_t op) const {
    return trace_.alloc_tick[storage] < trace_.first_tick[op];
  }

  template <typename Visit>
  void each_access(std::int64_t op, Visit visit) const {
    for (std::int64_t a = trace_.access_begin[op]; a < trace_.access_begin[op + 1]; ++a)
      visit(static_cast<std::size_t>(a), static_cast<std::size_t>(trace_.access_storage[a]));
  }

  template <typename Visit>
  void each_access_backwards(Visit visit) const {
    for (std::int64_t op = ops_; op-- > 0;)
      for (std::int64_t a = trace_.access_begin[op + 1]; a-- > trace_.access_begin[op];)
        visit(op, static_cast<std::size_t>(a), static_cast<std::size_t>(trace_.access_storage[a]));
  }

  ClairvoyantResult largest_working_set() const {
    ClairvoyantResult result;
    for (std::int64_t op = 0; op < ops_; ++op) {
      std::int64_t bytes = trace_.workspace_bytes[op];
      each_access(op, [&](std::size_t, std::size_t s) {
        if (exists_before(s, op)) bytes += trace_.placed_bytes(s);
      });
      if (bytes > result.required_bytes) result.required_bytes = bytes, result.required_op = op;
    }
    return result;
  }

  void begin(std::int64_t start) {
    for (std::size_t s = 0; s < trace_.storages(); ++s)
      if (!storages_[s].resident) storages_[s].next_use = later(start, first_use_[s]);
    apply_events(0);
  }

  void step(std::int64_t op, std::int64_t start) {
    std::int64_t wanted = trace_.workspace_bytes[op];
    each_access(op, [&](std::size_t, std::size_t s) {
      if (exists_before(s, op) && !storages_[s].resident) wanted += trace_.placed_bytes(s);
    });
    make_room(wanted);
    each_access(op, [&](std::size_t a, std::size_t s) {
      if (exists_before(s, op)) use(s, trace_.access_is_write[a]);
      storages_[s].next_use = later(start, next_use_[a]);
      if (storages_[s].resident) push(s);
    });
    apply_events(static_cast<std::size_t>(op) + 1);
  }

  void use(std::size_t s, bool is_write) {
    State& state = storages_[s];
    if (!state.resident) {
      bytes_in_ += trace_.size_bytes[s];
      used_ += trace_.placed_bytes(s);
      state.resident = state.clean = true;
    }
    if (is_write) state.clean = false;
  }

  void apply_events(std::size_t bucket) {
    for (std::size_t s : freed_after_[bucket]) drop(s);
    for (std::size_t s : born_after_[bucket]) {
      storages_[s].resident = true;
      storages_[s].clean = false;
      used_ += trace_.placed_bytes(s);
      push(s);
    }
    make_room(0);  // for what was allocated between ops: outputs were counted as workspace
  }

  // A storage that the coming op uses has the nearest next use of all, so it would go last; and since every op fits alone,
  // there is room before its turn comes.
  void make_room(std::int64_t wanted) {
    while (used_ + wanted > budget_ && !candidates_.empty()) {
      const auto [next_use, clean, s] = candidates_.top();
      candidates_.pop();
      // Entries are never removed when a storage is used again or freed: skip them here.
      if (!storages_[s].resident || storages_[s].next_use != next_use) continue;
      if (!clean) bytes_out_ += trace_.size_bytes[s];
      drop(s);
    }
  }

  void drop(std::size_t s) {
    if (storages_[s].resident) used_ -= trace_.placed_bytes(s);
    storages_[s].resident = false;
  }

  void end() {
    for (std::size_t s = 0; s < trace_.storages(); ++s) {
      if (trace_.born_before(s) || !trace_.outlives(s)) continue;
      const State last = storages_[s];
      drop(s);
      if (heir_[s] == kNone) continue;
      storages_[heir_[s]] = last;
      if (!last.resident) continue;
      used_ += trace_.placed_bytes(heir_[s]);
      push(heir_[s]);
    }
  }

  void push(std::size_t s) { candidates_.emplace(storages_[s].next_use, storages_[s].clean, s); }

  static std::int64_t later(std::int64_t start, std::int64_t use) { return use < kNever ? start + use : kNever; }

  const TraceColumns& trace_;
  const std::int64_t budget_, ops_;
  std::vector<State> storages_;
  std::vector<std::size_t> heir_;
  std::vector<std::int64_t> first_use_;  // by storage
  std::vector<std::int64_t> next_use_;   // by access: the use that follows it
  std::vector<std::vector<std::size_t>> born_after_, freed_after_;
  std::priority_queue<Candidate> candidates_;
  std::int64_t used_ = 0, bytes_out_ = 0, bytes_in_ = 0;
};

}  // namespace memfit
