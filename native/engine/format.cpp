// Bytes in words.
#include <cstdio>

#include "engine.h"

namespace memfit {

std::string format_bytes(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[64];
  if (unit == 0)
    std::snprintf(text, sizeof text, "%zu B", bytes);
  else
    std::snprintf(text, sizeof text, "%.2f %s (%zu bytes)", value, units[unit], bytes);
  return text;
}

}  // namespace memfit
