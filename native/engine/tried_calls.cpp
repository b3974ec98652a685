#include "tried_calls.h"

#include <c10/util/bit_cast.h>

#include "hash.h"

namespace memfit {

namespace {

uint64_t mix_all(uint64_t key, const c10::SmallVector<int64_t, 5>& numbers) {
  key = mix(key, numbers.size());
  for (int64_t number : numbers) key = mix(key, static_cast<uint64_t>(number));
  return key;
}

// The common ones are hashed without being written out as text.
uint64_t hash_of(const c10::IValue& argument) {
  if (argument.isBool()) return mix(1, argument.toBool());
  if (argument.isInt()) return mix(2, static_cast<uint64_t>(argument.toInt()));
  if (argument.isDouble()) return mix(3, c10::bit_cast<uint64_t>(argument.toDouble()));
  if (!argument.isIntList()) return fnv1a(c10::str(argument));
  uint64_t hash = 4;
  for (const int64_t number : argument.toIntList()) hash = mix(hash, static_cast<uint64_t>(number));
  return hash;
}

}  // namespace

uint64_t TriedCalls::key_of(const Recipe& recipe, size_t operand) {
  uint64_t key = mix(key_of(recipe), operand);
  for (const Operand& each : recipe.operands) key = mix(key, each.storage == recipe.operands[operand].storage);
  return key;
}

uint64_t TriedCalls::key_of(const Recipe& recipe) {
  if (recipe.key != 0) return recipe.key;
  uint64_t key = mix(recipe.op->name_hash, recipe.surroundings->hash());
  for (const Operand& each : recipe.operands) {
    key = mix(key, each.is_defined);
    key = mix(key, static_cast<uint64_t>(each.offset));
    key = mix(mix(key, static_cast<uint64_t>(each.device.type())), static_cast<uint64_t>(each.device.index()));
    key = mix(mix(key, fnv1a(each.dtype.name())), each.is_wrapped_number);
    key = mix_all(mix_all(key, each.sizes), each.strides);
  }
  for (const c10::IValue& argument : recipe.arguments)
    key = mix(key, argument.isNone() ? 0 : hash_of(argument));
  recipe.key = key;
  return key;
}

std::optional<bool> TriedCalls::comes_out_over(uint64_t key) const {
  const auto found = over.find(key);
  return found == over.end() ? std::nullopt : std::optional(found->second);
}

std::optional<bool> TriedCalls::comes_out_again(const Recipe& call) const {
  const auto found = again.find(key_of(call));
  return found == again.end() ? std::nullopt : std::optional(found->second.is_same);
}

std::optional<bool> TriedCalls::come_out_again(const std::vector<const Recipe*>& calls) const {
  bool are_known = true;
  for (const Recipe* call : calls) {
    const std::optional<bool> known = comes_out_again(*call);
    if (known == false) return false;
    are_known &= known.has_value();
  }
  return are_known ? std::optional(true) : std::nullopt;
}

std::optional<uint64_t> TriedCalls::ns_again(const std::vector<const Recipe*>& calls) const {
  uint64_t ns = 0;
  for (const Recipe* call : calls) {
    const auto found = again.find(key_of(*call));
    if (found == again.end() || !found->second.is_same || found->second.ns == 0) return std::nullopt;
    ns += found->second.ns;
  }
  return ns;
}

}  // namespace memfit
