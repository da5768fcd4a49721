#pragma once

// Structured logs: a level, a stable event name, and fields.

#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace psd {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

struct LogField {
  LogField(absl::string_view key, const absl::AlphaNum& value) : key(key), value(value.Piece()) {}
  std::string key;
  std::string value;
};

// Receives log events. Thread-safe.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual bool Enabled(LogLevel level) const = 0;
  // Logs an event. `event` is its name in lower_snake_case and never changes, since operators build
  // alerts on it; `message` is a text for people.
  virtual void Log(LogLevel level, absl::string_view event, absl::string_view message,
                   std::initializer_list<LogField> fields = {}) = 0;
};

// Returns a logger that writes one line per event to standard error:
//   2026-01-31T12:00:00.123Z info  worker_joined  trainer0 joined  worker=trainer0 rank=3
// or, with `json`, one JSON object per line.
std::shared_ptr<Logger> NewStderrLogger(LogLevel least, bool json = false);

// Returns a logger that writes the same lines to `out`. Requires: `out` outlives the logger.
std::shared_ptr<Logger> NewStreamLogger(std::ostream& out, LogLevel least, bool json = false);

// Returns a logger that drops every event.
std::shared_ptr<Logger> NewNullLogger();

// Returns "debug", "info", "warning", "error" or "off".
absl::string_view LogLevelName(LogLevel level);
// Parses a name that LogLevelName returns. Returns false for any other text.
bool ParseLogLevel(absl::string_view text, LogLevel* level);

}  // namespace psd
