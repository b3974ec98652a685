#include "packer/exact.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

namespace memfit::packing {
namespace {

// An item not yet placed: the lowest offset it can still have in the high bits, its rank in the low, so that
// entries sort by where items could go, then by how wanted they are. Between the two: whether it floats, that is
// rests on nothing placed so far; then it has to wait for what it will rest on.
using Entry = std::uint64_t;
constexpr int kRankBits = 13;
constexpr std::int64_t kPoll = 16;  // placements between two looks at the clock
constexpr std::int64_t kMaxItems = std::int64_t{1} << kRankBits;

constexpr Entry kFloats = Entry{1} << kRankBits;

Entry entry(Quanta offset, std::size_t rank) { return static_cast<Entry>(offset) << (kRankBits + 1) | rank; }
Quanta offset_of(Entry e) { return static_cast<Quanta>(e >> (kRankBits + 1)); }
bool floats(Entry e) { return (e & kFloats) != 0; }
std::size_t rank_of(Entry e) { return e & (kMaxItems - 1); }

// Takes `size` from each room in the span; whether all that is left is at least `least`. One pass without
// branches, so that compilers make vectors of it.
template <typename Room>
bool take(Room* room, Span span, Room size, Room least) {
  Room sign = 0;
  for (std::int32_t t = span.begin; t < span.end; ++t) {
    room[t] -= size;
    sign |= room[t] - least;
  }
  return sign >= 0;
}

}  // namespace

class Exact::Search {
 public:
  Search(const Problem& problem, const std::vector<std::int32_t>& order, Rules rules)
      : problem_(problem), rules_(rules), offsets_(problem.size(), kFree), ids_(order), free_(order.size()) {
    for (std::size_t i = 0; i < problem.size(); ++i) {
      if (problem.items[i].fixed == kFree) continue;
      offsets_[i] = problem.items[i].fixed;
      ids_.push_back(static_cast<std::int32_t>(i));
    }
    for (std::int32_t id : ids_) items_.push_back(problem.items[id]);
    find_fixed_met();
    find_equals();
    at_.assign(items_.size(), kFree);
    narrow_room_.resize(problem.sections);
    wide_room_.resize(problem.sections);
    link_.resize(static_cast<std::size_t>(problem.sections) + 1);
    levels_.resize(free_ + 2);
  }

  Verdict run(Quanta capacity, std::int64_t& work, const Stop& stop) {
    stop_ = &stop;
    capacity_ = capacity;
    work_ = work;
    narrow_ = capacity < (std::int64_t{1} << 29);
    std::fill(at_.begin(), at_.end(), kFree);
    std::vector<Entry>& root = levels_[0].parts;
    root.clear();
    for (std::size_t rank = 0; rank < free_; ++rank) root.push_back(entry(lowest(rank, 0), rank));
    for (std::size_t rank = free_; rank < items_.size(); ++rank) root.push_back(entry(items_[rank].fixed, rank));
    std::sort(root.begin(), root.end());
    Verdict verdict = Verdict::kNone;
    if (fits(root, {0, problem_.sections})) verdict = solve_parts(0, root.size(), 0);
    work = work_;
    if (verdict == Verdict::kFound)
      for (std::size_t rank = 0; rank < free_; ++rank) offsets_[ids_[rank]] = at_[rank];
    return verdict;
  }

  const Offsets& offsets() const { return offsets_; }

 private:
  // Scratch of one depth: the entries of a placement's children, and those entries part by part.
  struct Level {
    std::vector<Entry> raised, parts;
    std::vector<std::size_t> bounds;
  };

  bool is_fixed(std::size_t rank) const { return rank >= free_; }

  void find_fixed_met() {
    fixed_met_.resize(free_);
    for (std::size_t fixed = free_; fixed < items_.size(); ++fixed)
      for (std::size_t rank = 0; rank < free_; ++rank)
        if (conflicts(items_[rank], items_[fixed])) fixed_met_[rank].push_back(static_cast<std::int32_t>(fixed));
    for (auto& met : fixed_met_)
      std::sort(met.begin(), met.end(),
                [&](std::int32_t a, std::int32_t b) { return items_[a].fixed < items_[b].fixed; });
  }

  void find_equals() {
    twin_.assign(free_, -1);
    brother_.assign(free_, -1);
    std::map<std::array<std::int32_t, 4>, std::int32_t> latest;
    std::map<std::pair<std::int32_t, Quanta>, std::int32_t> latest_twin;  // by eldest brother and size
    std::vector<std::int32_t> eldest(free_);
    for (std::size_t i = 0; i < free_; ++i) {
      const auto rank = static_cast<std::int32_t>(i);
      const auto& spans = items_[i].spans;
      const auto [at, is_first] = latest.try_emplace({spans[0].begin, spans[0].end, spans[1].begin, spans[1].end}, rank);
      eldest[i] = is_first ? rank : eldest[at->second];
      if (!is_first) brother_[at->second] = rank;
      at->second = rank;
      const auto [twin, is_only] = latest_twin.try_emplace({eldest[i], items_[i].size}, rank);
      if (!is_only) twin_[i] = std::exchange(twin->second, rank);
    }
  }

  // Lowest offset at or above `offset` where the item meets nothing fixed.
  Quanta lowest(std::size_t rank, Quanta offset) const {
    for (std::int32_t other : fixed_met_[rank]) {
      const Item& fixed = items_[other];
      if (fixed.fixed < offset + items_[rank].size && offset < fixed.fixed + fixed.size)
        offset = fixed.fixed + fixed.size;
    }
    return offset;
  }

  bool fits(const std::vector<Entry>& entries, Span within) {
    return narrow_ ? fits(entries, within, narrow_room_) : fits(entries, within, wide_room_);
  }

  // From the highest entry down: all that cannot lie below an offset has to fit between it and the capacity. Only
  // the sections of `within` are looked at.
  template <typename Room>
  bool fits(const std::vector<Entry>& entries, Span within, std::vector<Room>& room) {
    std::fill(room.data() + within.begin, room.data() + within.end, static_cast<Room>(capacity_));
    work_ -= (within.end - within.begin) / 8;
    for (std::size_t i = entries.size(); i-- > 0;) {
      const Quanta offset = offset_of(entries[i]);
      const Item& item = items_[rank_of(entries[i])];
      if (offset + item.size > capacity_) return false;
      bool ok = true;
      for (const Span& whole : item.spans) {
        const Span span{std::max(whole.begin, within.begin), std::min(whole.end, within.end)};
        if (span.empty()) continue;
        ok &= take(room.data(), span, static_cast<Room>(item.size), static_cast<Room>(offset));
        work_ -= 4 + (span.end - span.begin) / 5;
      }
      if (!ok && rules_.suffixes) return false;
    }
    return true;
  }

  // Entries [begin, end) of a level's parts share sections only among themselves. `depth` is of the level.
  Verdict solve_parts(std::size_t begin, std::size_t end, std::size_t depth) {
    Level& level = levels_[depth];
    split(level, begin, end);
    for (std::size_t part = 0; part + 1 < level.bounds.size(); ++part) {
      const Verdict verdict = solve(depth, level.bounds[part], level.bounds[part + 1]);
      if (verdict != Verdict::kFound) return verdict;
    }
    return Verdict::kFound;
  }

  // Sorts the entries by part, stable, and notes where each part begins. Smaller parts first: they fail sooner.
  void split(Level& level, std::size_t begin, std::size_t end) {
    level.bounds.assign({begin, end});
    if (!rules_.split) return;
    const std::int32_t parts = label_sections(level, begin, end);
    if (parts < 2) return;
    std::vector<std::size_t> count(static_cast<std::size_t>(parts) + 1, 0);
    const auto label = [&](Entry e) { return static_cast<std::size_t>(link_[items_[rank_of(e)].spans[0].begin]); };
    for (std::size_t i = begin; i < end; ++i) ++count[label(level.parts[i]) + 1];
    for (std::size_t p = 1; p < count.size(); ++p) count[p] += count[p - 1];
    level.bounds.clear();
    for (std::size_t start : count) level.bounds.push_back(begin + start);
    std::vector<Entry> sorted(end - begin);
    for (std::size_t i = begin; i < end; ++i) sorted[count[label(level.parts[i])]++] = level.parts[i];
    std::copy(sorted.begin(), sorted.end(), level.parts.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  // Leaves in `link_` the part of each section, and returns how many there are.
  std::int32_t label_sections(const Level& level, std::size_t begin, std::size_t end) {
    std::fill(link_.begin(), link_.end(), 0);
    work_ -= problem_.sections + 2 * static_cast<std::int64_t>(end - begin);
    bool wraps = false;
    for (std::size_t i = begin; i < end; ++i) {
      const Item& item = items_[rank_of(level.parts[i])];
      wraps |= !item.spans[1].empty();
      // Items that span a boundary between two sections link them.
      for (const Span& span : item.spans)
        if (!span.empty()) ++link_[span.begin + 1], --link_[span.end];
    }
    std::int32_t open = 0, part = 0;
    for (std::int32_t t = 0; t < problem_.sections; ++t) {
      open += link_[t];
      if (t > 0 && open == 0) ++part;
      link_[t] = part;
    }
    if (wraps && part > 0)
      for (std::int32_t t = 0; t < problem_.sections; ++t)
        if (link_[t] == part) link_[t] = 0;
    return wraps && part > 0 ? part : part + 1;
  }

  // One of those left comes next in the order of offsets.
  Verdict solve(std::size_t depth, std::size_t begin, std::size_t end) {
    // Entries of this part; deeper levels have scratch of their own.
    const std::vector<Entry>& parts = levels_[depth].parts;
    Quanta ceiling = std::numeric_limits<Quanta>::max();
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t rank = rank_of(parts[i]);
      if (offset_of(parts[i]) >= ceiling) break;
      if (!is_fixed(rank)) ceiling = std::min(ceiling, offset_of(parts[i]) + items_[rank].size);
    }
    if (ceiling == std::numeric_limits<Quanta>::max()) return Verdict::kFound;  // only fixed items are left
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t rank = rank_of(levels_[depth].parts[i]);
      const Quanta offset = offset_of(levels_[depth].parts[i]);
      if (rules_.dominance && offset >= ceiling) break;
      if (floats(levels_[depth].parts[i]) || is_fixed(rank) || is_mirror(rank, offset)) continue;
      const Verdict verdict = descend(depth, begin, end, rank, offset);
      if (verdict != Verdict::kNone) return verdict;
    }
    return Verdict::kNone;
  }

  // Whether swapping the item with an equal one gives a plan that is looked at anyway.
  bool is_mirror(std::size_t rank, Quanta offset) const {
    if (!rules_.twins) return false;
    if (twin_[rank] >= 0 && at_[twin_[rank]] == kFree) return true;
    for (std::int32_t below = brother_[rank]; below >= 0; below = brother_[below])
      if (at_[below] != kFree && at_[below] + items_[below].size == offset) return true;
    return false;
  }

  Verdict descend(std::size_t depth, std::size_t begin, std::size_t end, std::size_t rank, Quanta offset) {
    if (work_ <= 0 || (++nodes_ % kPoll == 0 && (*stop_)())) return Verdict::kOutOfWork;
    const Span changed = raise(depth, begin, end, rank, offset);
    std::vector<Entry>& next = levels_[depth + 1].parts;
    if (next.empty()) {
      at_[rank] = offset;
      return Verdict::kFound;
    }
    if (!fits(next, changed)) return Verdict::kNone;
    at_[rank] = offset;
    const Verdict verdict = solve_parts(0, next.size(), depth + 1);
    if (verdict != Verdict::kFound) at_[rank] = kFree;
    return verdict;
  }

  // Leaves in the next level the entries that are left once `rank` lies at `offset`: none can go below that, and
  // those it meets not below its top. Returns a span that holds all sections in which anything has changed.
  Span raise(std::size_t depth, std::size_t begin, std::size_t end, std::size_t rank, Quanta offset) {
    const Entry* from = levels_[depth].parts.data();
    Level& to = levels_[depth + 1];
    to.raised.clear();
    kept_.clear();
    Span changed = extent(rank);
    const Quanta top = offset + items_[rank].size;
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t other = rank_of(from[i]);
      if (other == rank) continue;
      const Quanta now = offset_of(from[i]);
      Entry next = from[i];
      if (is_fixed(other)) {
      } else if (now < top + floats(from[i]) && conflicts(items_[rank], items_[other])) {
        next = entry(lowest(other, top), other);
      } else if (from[i] < entry(offset, rank)) {
        // An item that rests this low and is not placed first would be placed out of order.
        next = entry(lowest(other, offset + (now == offset)), other) | kFloats;
      }
      if (next == from[i]) {
        kept_.push_back(next);
        continue;
      }
      to.raised.push_back(next);
      const Span more = extent(other);
      changed = {std::min(changed.begin, more.begin), std::max(changed.end, more.end)};
    }
    work_ -= (depth < deepest_ ? 7 : 20) * static_cast<std::int64_t>(end - begin);  // memory is dear when it is new
    deepest_ = std::max(deepest_, depth + 1);
    std::sort(to.raised.begin(), to.raised.end());
    to.parts.resize(kept_.size() + to.raised.size());
    std::merge(kept_.begin(), kept_.end(), to.raised.begin(), to.raised.end(), to.parts.begin());
    return changed;
  }

  Span extent(std::size_t rank) const {
    const Item& item = items_[rank];
    return item.spans[1].empty() ? item.spans[0] : Span{0, problem_.sections};
  }

  const Problem& problem_;
  const Rules rules_;
  Offsets offsets_;
  std::vector<std::int32_t> ids_;  // by rank: free items by their order, then the fixed ones
  std::vector<Item> items_;        // by rank
  const std::size_t free_;
  std::vector<std::vector<std::int32_t>> fixed_met_;  // by free rank: fixed ranks it meets, lowest first
  std::vector<std::int32_t> twin_;                    // by free rank: the equal item before it, or -1
  std::vector<std::int32_t> brother_;                 // by free rank: the next one of the same spans, or -1
  Offsets at_;                                        // by rank: where it lies in the search
  Quanta capacity_ = 0;
  std::int64_t work_ = 0, nodes_ = 0;
  const Stop* stop_ = nullptr;
  bool narrow_ = false;
  std::vector<std::int32_t> narrow_room_;  // by section: scratch of `fits`; twice as fast, for 29 bits
  std::vector<std::int64_t> wide_room_;
  std::vector<std::int32_t> link_;
  std::vector<Level> levels_;
  std::size_t deepest_ = 0;  // level that has been used
  std::vector<Entry> kept_;  // scratch of `raise`
};

Exact::Exact(const Problem& problem, const std::vector<std::int32_t>& order, Rules rules)
    : search_(std::make_unique<Search>(problem, order, rules)) {}

Exact::~Exact() = default;

Verdict Exact::search(Quanta capacity, std::int64_t& work, const Stop& stop) {
  return search_->run(capacity, work, stop);
}

const Offsets& Exact::offsets() const { return search_->offsets(); }

bool is_searchable(const Problem& problem) {
  return problem.size() <= kSearchable && problem.lower_bound < (std::int64_t{1} << (59 - kRankBits));
}

}  // namespace memfit::packing
