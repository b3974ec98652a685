// File descriptors that are none of the standard streams'.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace memfit {

// `file` itself, or its copy above the standard streams: where the process began with one of them closed, what is
// written to that stream must not land in the file. Negative, with `errno` set, where there is no room for a copy.
inline int above_standard_streams(int file) {
  if (file < 0 || file > STDERR_FILENO) return file;
  const int above = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
  close(file);
  errno = error;
  return above;
}

}  // namespace memfit
