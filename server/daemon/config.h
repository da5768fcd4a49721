#pragma once

// The configuration of a daemon as one table of fields. The same table serves to read the file and
// the flags, to check ranges, and to print and document the configuration.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/log.h"

namespace psd::server {

// A device besides the CPU. A value.
struct DeviceConfig {
  enum class Kind {
    kEmulated,  // for developing without a GPU; its memory is ordinary memory of the machine
    kCuda,      // a GPU of NVIDIA
  };
  Kind kind = Kind::kEmulated;
  int number = 0;
  // The memory that values and work there may take. 0 means the default (OpenDevices).
  size_t budget_bytes = 0;

  std::string name() const;  // "emu:0", "cuda:1"
};

// A value. The defaults are those of a daemon that is given nothing but its name.
struct DaemonConfig {
  std::string name;
  std::string listen = "127.0.0.1:7071";
  std::string advertise;  // empty: the address listened on
  bool insecure = false;
  bool shared_memory = true;
  std::string shared_memory_folder;  // empty, or an absolute path
  std::string registrar_name;        // empty: this daemon is the registrar
  std::string registrar_address;
  bool registrar_only = false;
  std::vector<std::string> owners;  // of the job; empty: every worker that joins as an owner
  // 0: most of the memory that the daemon may use (memory_limit.h)
  size_t memory_budget_bytes = 0;
  int daemons_on_host = 1;
  std::vector<DeviceConfig> devices;  // no two have the same name
  bool share_devices = false;
  bool allow_tf32 = false;
  std::string checkpoint_root;  // if empty, this owner writes no files
  int threads = 4;
  int max_queued_functions = 10'000;
  absl::Duration lease = absl::Seconds(10);
  absl::Duration retry_window = absl::Seconds(30);
  absl::Duration drain_timeout = absl::Seconds(20);
  LogLevel log_level = LogLevel::kInfo;
  bool log_json = false;

  bool IsRegistrar() const { return registrar_name.empty() || registrar_name == name; }
};

// One line of the table.
struct ConfigField {
  absl::string_view name;   // the key in the file; the flag is --name
  absl::string_view type;   // "size"
  absl::string_view range;  // "1 to 1024"; for messages and documentation
  absl::string_view help;
  // Sets the field from `text`. Errors: INVALID_ARGUMENT with a text to be put behind "name: ".
  absl::Status (*parse)(absl::string_view text, DaemonConfig& config);
  // Returns the value as text that `parse` accepts.
  std::string (*print)(const DaemonConfig& config);
};

// Every field, in the order in which they are documented.
absl::Span<const ConfigField> ConfigFields();
// Returns null if there is no field of that name.
const ConfigField* FindConfigField(absl::string_view name);

// Puts a configuration together from several sources; later ones override earlier ones. Collects
// all problems with their places, so that they can be reported together. Thread-compatible.
class ConfigBuilder {
 public:
  explicit ConfigBuilder(DaemonConfig defaults = {}) : config_(std::move(defaults)) {}

  // Sets a field. `place` names the source in messages: "psd.yaml:3", "--threads".
  void Set(absl::string_view place, absl::string_view name, absl::string_view text);
  // Records a problem at a place of a source.
  void AddProblem(absl::string_view place, absl::string_view problem);
  // Whether a source has set the field.
  bool IsSet(absl::string_view name) const { return places_.count(std::string(name)) != 0; }

  // Checks that the fields fit together, and that checkpoint_root is a folder.
  // Errors: INVALID_ARGUMENT with one line per problem.
  absl::StatusOr<DaemonConfig> Build() const;

 private:
  std::string PlaceOf(absl::string_view name) const;
  void CheckName(std::vector<std::string>* problems) const;
  void CheckListen(std::vector<std::string>* problems) const;
  void CheckAdvertise(std::vector<std::string>* problems) const;
  void CheckOwners(std::vector<std::string>* problems) const;
  void CheckRegistrarOnly(std::vector<std::string>* problems) const;
  void CheckTimes(std::vector<std::string>* problems) const;
  void CheckRoot(std::vector<std::string>* problems) const;

  DaemonConfig config_;
  std::map<std::string, std::string> places_;  // the place where each field was set last
  std::vector<std::string> problems_;
};

// Returns the text of a file that gives this configuration.
std::string FormatConfig(const DaemonConfig& config);

// Returns registrar_name and registrar_address as one text: "owner0=127.0.0.1:7071".
std::string FormatRegistrar(const DaemonConfig& config);

}  // namespace psd::server
