// The arena as C functions, for tests, with the simplest of clients: storages of a few bytes that come, go, move and are pinned.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "engine/arena.cpp"
#include "engine/plan.cpp"
#include "engine/ranges.cpp"

namespace memfit {

namespace {

constexpr size_t kAlignment = 64, kPage = 256;
std::string message;

// Memory whose dropped pages are lost at once. Of what there is behind it there may be so many pages, until some are given up.
struct Bytes final : AddressSpace {
  explicit Bytes(size_t size) : bytes(size), is_backed(size / kPage) {}
  char* base() const override { return const_cast<char*>(bytes.data()); }
  size_t size() const override { return bytes.size(); }
  size_t page_at(size_t) const override { return kPage; }
  void back(size_t from, size_t to) override {
    for (size_t page = from / kPage; page < round_up(to, kPage) / kPage; ++page) {
      if (!is_backed[page] && count() == most) give_up();
      is_backed[page] = true;
    }
  }
  void drop(size_t from, size_t to) override {
    for (from = round_up(from, kPage); from + kPage <= to; from += kPage) std::memset(&bytes[from], 0, kPage), is_backed[from / kPage] = false;
  }
  size_t count() const { return static_cast<size_t>(std::count(is_backed.begin(), is_backed.end(), true)); }
  std::vector<char> bytes;
  std::vector<bool> is_backed;
  size_t most = SIZE_MAX;
  std::function<void()> give_up;
};

struct Storage {
  char content;
  bool is_small, is_pinned = false;
  Region* region = nullptr;  // nullptr: it has left
};

}  // namespace

struct Probe {
  explicit Probe(size_t most) : Probe(std::make_unique<Bytes>(most)) {}
  explicit Probe(std::unique_ptr<Bytes> space) : bytes(*space), arena(std::move(space), bytes.size(), kAlignment, &stand_in) {}

  Bytes& bytes;
  Storage stand_in{0, false, /*is_pinned=*/true};
  Arena arena;
  std::map<int, Storage> storages;
  size_t highest_shelf_end = 0;

  static Storage& owner(const Region* region) { return *static_cast<Storage*>(region->owner); }
  static void tell(Region* region) { owner(region).region = region; }
  char* address(const Region* region) const { return arena.base() + region->offset; }
  bool may_move(const Region* region) const { return region->is_free() || !owner(region).is_pinned; }

  void fill(const Storage& storage) const { std::memset(address(storage.region), storage.content, storage.region->size); }
  void evict(Storage& storage) { arena.give_back(std::exchange(storage.region, nullptr)); }
  void move_to(Storage& storage, Region* target) {
    std::memmove(address(target), address(storage.region), target->size);
    arena.give_back(std::exchange(storage.region, target));
  }
  // As memfit's Residency: elsewhere in the arena, or out of it.
  void make_way(Storage& storage, size_t from, size_t to) {
    Region* target = storage.is_small ? arena.take_on_shelf(storage.region->size, &storage) : nullptr;
    if (target == nullptr) target = arena.ranges.take_outside(storage.region->size, &storage, from, to);
    if (target != nullptr)
      move_to(storage, target);
    else
      evict(storage);
  }
  // What may move of [from, to) leaves it. False when anything in it stays.
  bool clear(size_t from, size_t to) {
    std::vector<Storage*> victims;
    for (Region* r = arena.ranges.first(); r != nullptr && r->offset < to; r = r->next) {
      if (r->is_free() || r->end() <= from) continue;
      if (!may_move(r)) return false;
      victims.push_back(&owner(r));
    }
    for (Storage* victim : victims) make_way(*victim, from, to);
    return true;
  }
  Region* place_on_shelf(Storage& storage, size_t bytes) {
    const size_t end = arena.shelf_end_for(bytes);
    if (end > arena.shelf_end()) {
      if (end > arena.ranges.limit() || arena.plan() != nullptr || !clear(arena.shelf_end(), end)) return nullptr;
      arena.grow_shelf(end);
    }
    return arena.take_on_shelf(bytes, &storage);
  }
  bool place(Storage& storage, size_t bytes, bool high) {
    bytes = arena.round(bytes);
    if (storage.is_small) storage.region = place_on_shelf(storage, bytes);
    if (storage.region == nullptr) storage.region = arena.ranges.take(bytes, &storage, high);
    if (storage.region == nullptr && arena.plan() != nullptr) storage.region = arena.plan()->lodge(bytes, &storage);
    if (storage.region != nullptr) fill(storage);
    return storage.region != nullptr;
  }
  // The storage comes down over what is free below it.
  void slide(Ranges& ranges, Storage& storage) {
    size_t target = storage.region->offset;
    for (const Region* r = storage.region->prev; r != nullptr && r->is_free(); r = r->prev) target = r->offset;
    if (!ranges.may_slide(*storage.region, target)) return;
    std::memmove(arena.base() + target, address(storage.region), storage.region->size);
    storage.region = ranges.slide(storage.region, target);
  }
  // It goes up over what is free above it.
  void slide_up(Ranges& ranges, Storage& storage) {
    size_t end = storage.region->end();
    for (const Region* r = storage.region->next; r != nullptr && r->is_free() && r->offset < ranges.limit(); r = r->next) end = r->end();
    const size_t target = end - storage.region->size;
    if (!ranges.may_slide(*storage.region, target)) return;
    std::memmove(arena.base() + target, address(storage.region), storage.region->size);
    storage.region = ranges.slide(storage.region, target);
  }
  // As memfit's Shelf does it with what must stay from now on.
  void keep(Storage& storage) {
    if (storage.is_pinned || arena.on_shelf(storage.region) || arena.plan() != nullptr) return;
    storage.is_pinned = true;  // it is nobody's victim meanwhile
    if (Region* region = place_on_shelf(storage, storage.region->size)) return move_to(storage, region);
    slide(arena.ranges, storage);
    if (Region* region = arena.put_on_shelf(storage.region)) storage.region = region;
  }
  // The bytes of the pages below the limit that something has been written to, and that nobody has dropped since.
  size_t backed() const {
    const char* end = arena.base() + arena.ranges.limit();
    size_t pages = 0;
    for (const char* page = arena.base(); page < end; page += kPage) pages += std::any_of(page, std::min(page + kPage, end), [](char byte) { return byte != 0; });
    return pages * kPage;
  }
  void leave_beyond(size_t limit) {
    for (auto& [number, storage] : storages)
      if (storage.region != nullptr && !storage.is_pinned && storage.region->end() > limit) make_way(storage, limit, SIZE_MAX);
  }
  // As memfit's Growth.
  void return_to_limit() {
    const bool is_punched = arena.punched_bytes() != 0;
    const auto stays = [&](const auto& each) { return each.second.region != nullptr && each.second.is_pinned && each.second.region->end() > arena.limit(); };
    if (is_punched && std::any_of(storages.begin(), storages.end(), stays)) return;
    arena.fill_punched();
    arena.shrink(arena.limit(), tell);
    leave_beyond(arena.limit());
    size_t end = arena.limit();
    for (const auto& [number, storage] : storages)
      if (storage.region != nullptr) end = std::max(end, storage.region->end());
    arena.grow(end);
    arena.release_free_pages();
  }
  bool make_zone(PlanTable table, size_t offset) {
    const size_t end = offset + table.bytes;
    if (arena.plan() != nullptr || arena.punched_bytes() != 0 || offset < arena.shelf_end() || end > arena.limit()) return false;
    for (const Region* r = arena.ranges.first(); r != nullptr && r->offset < end; r = r->next) {
      if (may_move(r) || r->end() <= offset) continue;
      if (r->offset < offset || r->end() > end || table.uses(r->offset - offset, r->end() - offset)) return false;
    }
    for (auto& [number, storage] : storages)
      if (storage.region != nullptr && !storage.is_pinned && storage.region->offset < end && storage.region->end() > offset) evict(storage);
    const auto make_way = [](Region*) { return false; };
    arena.set_plan(std::move(table), offset, /*at_once=*/true, make_way, tell);
    arena.plan()->op_begins(0);
    return true;
  }
  void check() {
    arena.check();
    size_t bytes = 0;
    for (const auto& [number, storage] : storages) {
      if (storage.region == nullptr) continue;
      if (storage.region->owner != &storage) throw std::logic_error("a storage's region is another's");
      const char* begin = address(storage.region);
      bytes += storage.region->size;
      if (std::any_of(begin, begin + storage.region->size, [&](char byte) { return byte != storage.content; }))
        throw std::logic_error("a storage's bytes are others");
    }
    if (bytes != arena.used()) throw std::logic_error("more is in use than there are storages, or less");
    highest_shelf_end = std::max(highest_shelf_end, arena.shelf_end());
    if (arena.shelf().footprint() > highest_shelf_end) throw std::logic_error("a place counts to the footprint that was never the shelf's");
  }
};

namespace {

template <typename Action>
int told(const Action& action) {
  try {
    message.clear();
    return static_cast<int>(action());
  } catch (const std::exception& error) {
    message = error.what();
    return -1;
  }
}

// Slots of equal sizes, one upon another, above a part of the zone in which there are none.
PlanTable table_of(size_t takes, size_t bytes, size_t gap) {
  PlanTable table;
  for (uint32_t i = 0; i < takes; ++i) {
    table.takes.push_back({bytes, i, 1});
    table.slot_offset.push_back(gap + i * bytes);
  }
  table.op_begin = {0, static_cast<uint32_t>(takes)};
  table.due_begin.assign(takes + 2, 0);
  table.bytes = gap + takes * bytes;
  return table;
}

}  // namespace

}  // namespace memfit

using namespace memfit;

// Each returns 1 where it did something, 0 where it could not, and -1 for an error, which `failure` has.
extern "C" {

Probe* make(size_t most) { return new Probe(most); }
void destroy(Probe* probe) { delete probe; }
const char* failure() { return message.c_str(); }
int check(Probe* probe) {
  return told([&] { return probe->check(), true; });
}
// Its first bytes' offset in the arena; -1: it is not there.
long where(Probe* probe, int number) {
  const Region* region = probe->storages.at(number).region;
  return region == nullptr ? -1 : static_cast<long>(region->offset);
}
long limit(Probe* probe) { return static_cast<long>(probe->arena.limit()); }
long shelf_end(Probe* probe) { return static_cast<long>(probe->arena.shelf_end()); }
int has_given_way(Probe* probe) { return static_cast<int>(probe->arena.ranges.limit() > probe->arena.limit()); }
int make_storage(Probe* probe, int number, size_t bytes, int is_small, int is_high) {
  return told([&] {
    Storage& storage = probe->storages.emplace(number, Storage{static_cast<char>(number % 127 + 1), is_small != 0}).first->second;
    if (probe->place(storage, bytes, is_high != 0)) return true;
    probe->storages.erase(number);
    return false;
  });
}
int make_beyond(Probe* probe, int number, size_t bytes) {
  return told([&] {
    Storage& storage = probe->storages.emplace(number, Storage{static_cast<char>(number % 127 + 1), false}).first->second;
    storage.region = probe->arena.take_beyond(bytes, &storage);
    if (storage.region == nullptr) return probe->storages.erase(number), false;
    probe->fill(storage);
    if (probe->backed() > round_up(probe->arena.ranges.limit() - probe->arena.punched_bytes(), kPage)) throw std::logic_error("a storage beyond the limit has bytes that no hole was punched for");
    return true;
  });
}
int free_storage(Probe* probe, int number) {
  return told([&] {
    if (probe->storages.at(number).region != nullptr) probe->evict(probe->storages.at(number));
    return probe->storages.erase(number) != 0;
  });
}
int pin(Probe* probe, int number) {
  return told([&] {
    Storage& storage = probe->storages.at(number);
    if (storage.region == nullptr) return false;
    probe->keep(storage);
    return storage.is_pinned = true;
  });
}
int unpin(Probe* probe, int number) {
  return told([&] { return std::exchange(probe->storages.at(number).is_pinned, false); });
}
int slide(Probe* probe, int number) {
  return told([&] {
    Storage& storage = probe->storages.at(number);
    if (storage.region == nullptr || storage.is_pinned || probe->arena.is_planned(storage.region)) return false;
    return probe->slide(probe->arena.on_shelf(storage.region) ? probe->arena.shelf() : probe->arena.ranges, storage), true;
  });
}
int slide_up(Probe* probe, int number) {
  return told([&] {
    Storage& storage = probe->storages.at(number);
    if (storage.region == nullptr || storage.is_pinned || storage.region->home != &probe->arena.ranges) return false;
    return probe->slide_up(probe->arena.ranges, storage), true;
  });
}
int trim_shelf(Probe* probe, size_t slack) {
  return told([&] { return probe->arena.trim_shelf(slack); });
}
int dissolve_shelf(Probe* probe) {
  return told([&] { return probe->arena.plan() == nullptr && (probe->arena.dissolve_shelf(Probe::tell), true); });
}
// As a session does it.
int set_limit(Probe* probe, size_t limit) {
  return told([&] {
    probe->arena.drop_plan(Probe::tell);
    probe->leave_beyond(limit);
    probe->arena.set_limit(limit, Probe::tell);
    return probe->arena.release_free_pages(), true;
  });
}
int give_way(Probe* probe, size_t more) {
  return told([&] {
    if (probe->arena.ranges.limit() + more > probe->arena.ranges.most()) return false;
    return probe->arena.grow(probe->arena.ranges.limit() + more), true;
  });
}
int return_to_limit(Probe* probe) {
  return told([&] { return probe->return_to_limit(), true; });
}
// From `from` to `to`, where there is memory for so many pages in all. Returns how many of them have it.
int back(Probe* probe, size_t from, size_t to, size_t most) {
  return told([&] {
    probe->bytes.most = most;
    probe->bytes.give_up = [probe] { probe->arena.release_free_pages(); };
    probe->arena.back(from, to);
    return std::count(probe->bytes.is_backed.begin() + from / kPage, probe->bytes.is_backed.begin() + round_up(to, kPage) / kPage, true);
  });
}
int set_plan(Probe* probe, size_t takes, size_t bytes, size_t gap, size_t above_shelf) {
  return told([&] { return probe->make_zone(table_of(takes, bytes, gap), probe->arena.shelf_end() + above_shelf); });
}
int take_planned(Probe* probe, int number, size_t bytes) {
  return told([&] {
    if (probe->arena.plan() == nullptr) return false;
    Storage& storage = probe->storages.emplace(number, Storage{static_cast<char>(number % 127 + 1), false}).first->second;
    storage.region = probe->arena.plan()->take(bytes, &storage);
    if (storage.region == nullptr) return probe->storages.erase(number), false;
    return probe->fill(storage), true;
  });
}
int end_iteration(Probe* probe) {
  return told([&] {
    if (probe->arena.plan() == nullptr) return false;
    probe->arena.plan()->iteration_ends();
    return probe->arena.plan()->op_begins(0), true;
  });
}
int drop_plan(Probe* probe) {
  return told([&] { return probe->arena.plan() != nullptr && (probe->arena.drop_plan(Probe::tell), true); });
}

}  // extern "C"
