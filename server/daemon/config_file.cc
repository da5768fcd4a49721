#include "server/daemon/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace psd::server {
namespace {

// Turns the events of the YAML parser into fields. No document is built in memory, so a file cannot
// make it large: an alias is refused where it stands and never expanded.
class FieldReader : public YAML::EventHandler {
 public:
  FieldReader(absl::string_view source, ConfigBuilder& builder)
      : source_(source), builder_(builder) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    OnScalar(mark, "", anchor, "");
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Problem(mark, "aliases (*name) are not used here; write the value out");
    if (AmongFields()) TakeKeyOrValue(mark, "", /*usable=*/false);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool usable = CheckPlain(mark, tag, anchor);
    if (AmongFields()) TakeKeyOrValue(mark, value, usable);
    if (depth_ == 0 && !value.empty()) Problem(mark, "expected 'key: value' lines");
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, "list");
  }
  void OnSequenceEnd() override { --depth_; }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    if (depth_ > 0) return Open(mark, tag, anchor, "mapping");
    CheckPlain(mark, tag, anchor);
    is_mapping_ = true;
    ++depth_;
  }
  void OnMapEnd() override { --depth_; }

 private:
  std::string Place(const YAML::Mark& mark) const {
    return absl::StrCat(source_, ":", mark.line + 1);
  }

  void Problem(const YAML::Mark& mark, absl::string_view text) {
    builder_.AddProblem(Place(mark), text);
  }

  bool CheckPlain(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) {
      Problem(mark, "anchors (&name) are not used here; write the value out");
      return false;
    }
    // The parser's tags for values without a tag: "?" for plain ones, "!" for quoted ones.
    if (tag.empty() || tag == "?" || tag == "!") return true;
    Problem(mark, "tags (!type) are not used here");
    return false;
  }

  // Handles the start of a list or a mapping, which is not allowed in place of a single value.
  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            absl::string_view what) {
    CheckPlain(mark, tag, anchor);
    if (depth_ == 0) Problem(mark, absl::StrCat("expected 'key: value' lines, got a ", what));
    if (AmongFields()) {
      Problem(mark, absl::StrCat("expected a single value, got a ", what));
      TakeKeyOrValue(mark, "", /*usable=*/false);
    }
    ++depth_;
  }

  // Whether the position is directly inside the document's mapping.
  bool AmongFields() const { return depth_ == 1 && is_mapping_; }

  void TakeKeyOrValue(const YAML::Mark& mark, const std::string& text, bool usable) {
    if (!have_key_) {
      have_key_ = true;
      key_ = text;
      key_usable_ = usable;
      key_place_ = Place(mark);
      return;
    }
    have_key_ = false;
    if (!usable || !key_usable_) return;
    auto [it, first] = seen_.emplace(key_, key_place_);
    if (!first) {
      return builder_.AddProblem(key_place_,
                                 absl::StrCat(key_, ": set twice; the first is at ", it->second));
    }
    builder_.Set(key_place_, key_, text);
  }

  const std::string source_;
  ConfigBuilder& builder_;
  int depth_ = 0;
  bool is_mapping_ = false;
  bool have_key_ = false;
  bool key_usable_ = false;
  std::string key_;
  std::string key_place_;
  std::map<std::string, std::string> seen_;  // key -> its place
};

// Returns why `text` cannot be a configuration, before it is parsed, or an empty text.
std::string NotText(absl::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    return absl::StrCat(text.size(), " bytes are too many for a configuration; at most ",
                        kMaxConfigBytes);
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 ? byte != 0x7f : byte == '\n' || byte == '\r' || byte == '\t') continue;
    return absl::StrCat("byte ", i, " is ", static_cast<int>(byte), ": this is not a text file");
  }
  return "";
}

}  // namespace

void AddConfigText(absl::string_view source, absl::string_view text, ConfigBuilder& builder) {
  const std::string refused = NotText(text);
  if (!refused.empty()) return builder.AddProblem(source, refused);
  std::istringstream stream{std::string(text)};
  FieldReader reader(source, builder);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(reader);
    if (parser.HandleNextDocument(reader))
      builder.AddProblem(source, "holds a second document ('---'); one is enough");
  } catch (const YAML::Exception& error) {
    const std::string place =
        error.mark.is_null() ? std::string(source) : absl::StrCat(source, ":", error.mark.line + 1);
    builder.AddProblem(place, absl::StrCat("not valid YAML: ", error.msg));
  }
}

void AddConfigFile(const std::string& path, ConfigBuilder& builder) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) {
    const char* reason = errno != 0 ? std::strerror(errno) : "not readable";
    return builder.AddProblem(path, absl::StrCat("cannot be read: ", reason));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  AddConfigText(path, text, builder);
}

}  // namespace psd::server
