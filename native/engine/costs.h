// Costs: how long a storage's absence takes, for the time that it lasts: its copies out and back in, or making it again.
#pragma once

#include <limits>

#include "books.h"
#include "discarding.h"
#include "forecast.h"

namespace memfit {

class Costs {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  Costs(const Books& books, const Forecast& forecast, const Discarding& discarding)
      : books_(books), forecast_(forecast), discarding_(discarding) {}

  // The bytes that the link to the tier copies in a nanosecond, out and back in.
  void know_link(double out, double in) { out_per_ns_ = out, in_per_ns_ = in; }
  // Making it again takes less time than copies, as far as can be told without a look at what it is made from.
  bool is_dropped(const Block& block) const { return ns_of_making(block) < ns_of_copies(block); }
  // Nanoseconds for each op until the next use.
  double of_leaving(const Block& block) const;
  // Likewise where nothing is copied; kNever if the block cannot be made again.
  double of_dropping(const Block& block) const { return per_op_away(block, ns_of_making(block)); }

 private:
  double per_op_away(const Block& block, double ns) const;
  double ns_of_copies(const Block& block) const;
  double ns_of_making(const Block& block) const;

  const Books& books_;
  const Forecast& forecast_;
  const Discarding& discarding_;
  double out_per_ns_ = 1, in_per_ns_ = 1;
};

}  // namespace memfit
