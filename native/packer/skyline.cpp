#include "packer/skyline.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace memfit::packing {
namespace {

constexpr std::int64_t kLookWork = 5, kItemWork = 200;
constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

// The items that are not placed yet, sorted by birth: a tree of the earliest death and the best rank below each node.
class Waiting {
 public:
  Waiting(const Problem& problem, const std::vector<std::int32_t>& order) {
    while (leaves_ < static_cast<std::int32_t>(order.size())) leaves_ *= 2;
    nodes_.assign(2 * static_cast<std::size_t>(leaves_), {kNone, kNone});
    first_.assign(static_cast<std::size_t>(problem.sections) + 1, 0);
    for (std::int32_t item : order) ++first_[problem.items[item].spans[0].begin + 1];
    for (std::size_t t = 1; t < first_.size(); ++t) first_[t] += first_[t - 1];
    leaf_of_.resize(order.size());
    std::vector<std::int32_t> next = first_;
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      const Span span = problem.items[order[rank]].spans[0];
      leaf_of_[rank] = leaves_ + next[span.begin]++;
      nodes_[leaf_of_[rank]] = {span.end, static_cast<std::int32_t>(rank)};
    }
    for (std::int32_t node = leaves_ - 1; node > 0; --node) renew(node);
  }

  // Rank of the most wanted item that lives within `span`, or kNone.
  std::int32_t best_within(Span span) {
    best_ = kNone;
    from_ = first_[span.begin], to_ = first_[span.end], death_ = span.end;
    if (from_ < to_) look(1, 0, leaves_);
    return best_;
  }

  void remove(std::int32_t rank) {
    std::int32_t node = leaf_of_[rank];
    nodes_[node] = {kNone, kNone};
    while ((node /= 2) > 0) renew(node);
  }

  std::int64_t looks() const { return looks_; }

 private:
  struct Node {
    std::int32_t death, rank;
  };

  void renew(std::int32_t node) {
    const Node &a = nodes_[2 * node], &b = nodes_[2 * node + 1];
    nodes_[node] = {std::min(a.death, b.death), std::min(a.rank, b.rank)};
  }

  // The leaves [begin, end) are those of `node`.
  void look(std::int32_t node, std::int32_t begin, std::int32_t end) {
    ++looks_;
    if (nodes_[node].death > death_ || nodes_[node].rank >= best_ || begin >= to_ || end <= from_) return;
    if (node >= leaves_) {
      best_ = nodes_[node].rank;
      return;
    }
    const std::int32_t middle = begin + (end - begin) / 2;
    if (nodes_[2 * node].rank < nodes_[2 * node + 1].rank) {
      look(2 * node, begin, middle);
      look(2 * node + 1, middle, end);
    } else {
      look(2 * node + 1, middle, end);
      look(2 * node, begin, middle);
    }
  }

  std::int32_t leaves_ = 1;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> first_;    // by section: how many leaves are born before it
  std::vector<std::int32_t> leaf_of_;  // by rank
  std::int32_t from_ = 0, to_ = 0, death_ = 0, best_ = kNone;  // of the query at hand
  std::int64_t looks_ = 0;
};

// Lines that cover all sections, each at a height; no two neighbours are equally high.
class Skyline {
 public:
  explicit Skyline(std::int32_t sections)
      : end_(sections), begin_(static_cast<std::size_t>(sections) + 1, -1), height_(sections, -1) {
    set({0, sections}, 0);
  }

  // The lowest line, the leftmost of equals.
  Span lowest() {
    while (height_[heap_.top().second] != heap_.top().first) heap_.pop();  // a line that is no more, or has risen
    const std::int32_t begin = heap_.top().second;
    return {begin, end_[begin]};
  }

  Quanta height(Span line) const { return height_[line.begin]; }

  // Raises a line to its lower neighbour.
  void lift(Span line) {
    Quanta lower = std::numeric_limits<Quanta>::max();
    if (line.begin > 0) lower = height_[begin_[line.begin]];
    if (line.end < static_cast<std::int32_t>(height_.size())) lower = std::min(lower, height_[line.end]);
    set(line, lower);
    merge(line);
  }

  // Raises `part` of a line by `size`.
  void put(Span line, Span part, Quanta size) {
    const Quanta ground = height(line);
    if (line.begin < part.begin) set({line.begin, part.begin}, ground);
    if (part.end < line.end) set({part.end, line.end}, ground);
    set(part, ground + size);
    merge(part);
  }

 private:
  void set(Span line, Quanta height) {
    end_[line.begin] = line.end;
    begin_[line.end] = line.begin;
    height_[line.begin] = height;
    heap_.emplace(height, line.begin);
  }

  // Joins a line with neighbours that are as high.
  void merge(Span line) {
    const Quanta height = height_[line.begin];
    Span joined = line;
    if (line.end < static_cast<std::int32_t>(height_.size()) && height_[line.end] == height) {
      joined.end = end_[line.end];
      height_[line.end] = -1;
    }
    if (line.begin > 0 && height_[begin_[line.begin]] == height) {
      joined.begin = begin_[line.begin];
      height_[line.begin] = -1;
    }
    if (joined.begin != line.begin || joined.end != line.end) set(joined, height);
  }

  using Entry = std::pair<Quanta, std::int32_t>;
  std::vector<std::int32_t> end_;    // by a line's first section
  std::vector<std::int32_t> begin_;  // by a line's end
  std::vector<Quanta> height_;       // by a line's first section; -1 where none begins
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

}  // namespace

bool is_flat(const Problem& problem) {
  return std::all_of(problem.items.begin(), problem.items.end(),
                     [](const Item& item) { return item.fixed == kFree && item.spans[1].empty(); });
}

Offsets place_on_skyline(const Problem& problem, const std::vector<std::int32_t>& order, std::int64_t& work) {
  Offsets offsets(problem.size(), kFree);
  if (order.empty()) return offsets;
  Waiting waiting(problem, order);
  Skyline skyline(problem.sections);
  for (std::size_t placed = 0; placed < order.size();) {
    const Span line = skyline.lowest();
    const std::int32_t rank = waiting.best_within(line);
    if (rank == kNone) {
      skyline.lift(line);
      continue;
    }
    const Item& item = problem.items[order[rank]];
    offsets[order[rank]] = skyline.height(line);
    skyline.put(line, item.spans[0], item.size);
    waiting.remove(rank);
    ++placed;
  }
  work -= kLookWork * waiting.looks() + kItemWork * static_cast<std::int64_t>(order.size());
  return offsets;
}

}  // namespace memfit::packing
