// This is the only file that includes spdlog.
#include "core/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"

namespace psd {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

// Returns the length in bytes of the well-formed UTF-8 character that `text` begins with, or 0 if
// it begins with none. Requires: `text` is not empty.
size_t Utf8Length(absl::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead > 0xf4 || length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Refuses overlong forms, surrogates and code points beyond U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

// Returns `text` as a JSON string on one line. The text may come from a peer, so bytes that are not
// UTF-8 must not make the line invalid.
std::string JsonString(absl::string_view text) {
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t length = Utf8Length(text.substr(i));
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&quoted, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    } else if (length == 0) {
      quoted += "\\ufffd";
    } else {
      absl::StrAppend(&quoted, text.substr(i, length));
    }
    i += length == 0 ? 1 : length;
  }
  return quoted + "\"";
}

std::string TextValue(const std::string& value) {
  bool plain = !value.empty();
  for (char c : value) plain = plain && c > ' ' && c != '"' && c != '=' && c != 0x7f;
  return plain ? value : absl::StrCat("\"", absl::CEscape(value), "\"");
}

class LineLogger : public Logger {
 public:
  LineLogger(spdlog::sink_ptr sink, LogLevel least, bool json)
      : json_(json), logger_("psd", std::move(sink)) {
    logger_.set_level(ToSpdlog(least));
    logger_.flush_on(spdlog::level::debug);
    auto formatter = std::make_unique<spdlog::pattern_formatter>(
        json ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",\"level\":\"%l\",%v}"
             : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %v",
        spdlog::pattern_time_type::utc);
    logger_.set_formatter(std::move(formatter));
  }

  bool Enabled(LogLevel level) const override {
    return level != LogLevel::kOff && logger_.should_log(ToSpdlog(level));
  }

  void Log(LogLevel level, absl::string_view event, absl::string_view message,
           std::initializer_list<LogField> fields) override {
    if (!Enabled(level)) return;
    std::string line = json_ ? Json(event, message, fields) : Text(event, message, fields);
    logger_.log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
  }

 private:
  static std::string Json(absl::string_view event, absl::string_view message,
                          std::initializer_list<LogField> fields) {
    std::string line =
        absl::StrCat("\"event\":", JsonString(event), ",\"message\":", JsonString(message));
    for (const LogField& field : fields)
      absl::StrAppend(&line, ",", JsonString(field.key), ":", JsonString(field.value));
    return line;
  }

  static std::string Text(absl::string_view event, absl::string_view message,
                          std::initializer_list<LogField> fields) {
    std::string line = absl::StrCat(event, "  ", absl::CEscape(message));
    for (const LogField& field : fields)
      absl::StrAppend(&line, " ", field.key, "=", TextValue(field.value));
    return line;
  }

  const bool json_;
  spdlog::logger logger_;
};

class NullLogger : public Logger {
 public:
  bool Enabled(LogLevel) const override { return false; }
  void Log(LogLevel, absl::string_view, absl::string_view,
           std::initializer_list<LogField>) override {}
};

}  // namespace

std::shared_ptr<Logger> NewStderrLogger(LogLevel least, bool json) {
  return std::make_shared<LineLogger>(std::make_shared<spdlog::sinks::stderr_sink_mt>(), least,
                                      json);
}

std::shared_ptr<Logger> NewStreamLogger(std::ostream& out, LogLevel least, bool json) {
  return std::make_shared<LineLogger>(std::make_shared<spdlog::sinks::ostream_sink_mt>(out), least,
                                      json);
}

std::shared_ptr<Logger> NewNullLogger() {
  return std::make_shared<NullLogger>();
}

absl::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "off";
}

bool ParseLogLevel(absl::string_view text, LogLevel* level) {
  for (const LogLevel each :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (LogLevelName(each) != text) continue;
    *level = each;
    return true;
  }
  return false;
}

}  // namespace psd
