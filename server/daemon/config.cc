#include "server/daemon/config.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/host_port.h"
#include "core/base/nearest_name.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/shared_folder.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/checkpoint/checkpoint_root.h"

namespace psd::server {
namespace {

absl::Status Expected(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", Quoted(text)));
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return Expected("true or false", text);
}

struct SizeUnit {
  absl::string_view name;
  uint64_t bytes;
};
constexpr SizeUnit kSizeUnits[] = {{"TiB", uint64_t{1} << 40},
                                   {"GiB", uint64_t{1} << 30},
                                   {"MiB", uint64_t{1} << 20},
                                   {"KiB", uint64_t{1} << 10}};

absl::StatusOr<size_t> ParseSize(absl::string_view text) {
  constexpr absl::string_view kWhat = "a size such as 0, 1048576, 512MiB or 4GiB (at most 1024TiB)";
  constexpr uint64_t kMax = uint64_t{1} << 50;
  absl::string_view digits = text;
  uint64_t unit = 1;
  for (const SizeUnit& candidate : kSizeUnits) {
    if (!absl::ConsumeSuffix(&digits, candidate.name)) continue;
    unit = candidate.bytes;
    break;
  }
  uint64_t number = 0;
  digits = absl::StripTrailingAsciiWhitespace(digits);
  const bool plain = !digits.empty() && absl::ascii_isdigit(digits[0]);
  if (!plain || !absl::SimpleAtoi(digits, &number) || number > kMax / unit)
    return Expected(kWhat, text);
  return static_cast<size_t>(number * unit);
}

std::string PrintSize(size_t bytes) {
  for (const SizeUnit& unit : kSizeUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.name);
  }
  return absl::StrCat(bytes);
}

template <int DaemonConfig::*kMember, int kLeast, int kMost>
absl::Status ParseInt(absl::string_view text, DaemonConfig& config) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < kLeast || value > kMost)
    return Expected(absl::StrCat("a whole number from ", kLeast, " to ", kMost), text);
  config.*kMember = value;
  return absl::OkStatus();
}
template <int DaemonConfig::*kMember>
std::string PrintInt(const DaemonConfig& config) {
  return absl::StrCat(config.*kMember);
}

template <bool DaemonConfig::*kMember>
absl::Status ParseBoolField(absl::string_view text, DaemonConfig& config) {
  PSD_ASSIGN_OR_RETURN(config.*kMember, ParseBool(text));
  return absl::OkStatus();
}
template <bool DaemonConfig::*kMember>
std::string PrintBool(const DaemonConfig& config) {
  return config.*kMember ? "true" : "false";
}

template <absl::Duration DaemonConfig::*kMember, int kLeastMs, int kMostMs>
absl::Status ParseTime(absl::string_view text, DaemonConfig& config) {
  const absl::Duration least = absl::Milliseconds(kLeastMs), most = absl::Milliseconds(kMostMs);
  absl::Duration value;
  if (!absl::ParseDuration(text, &value) || value < least || value > most) {
    return Expected(absl::StrCat("a time with its unit, from ", absl::FormatDuration(least), " to ",
                                 absl::FormatDuration(most), " (such as 500ms, 10s or 2m)"),
                    text);
  }
  config.*kMember = absl::Floor(value, absl::Milliseconds(1));
  return absl::OkStatus();
}
template <absl::Duration DaemonConfig::*kMember>
std::string PrintTime(const DaemonConfig& config) {
  return absl::FormatDuration(config.*kMember);
}

absl::Status ParseName(absl::string_view text, DaemonConfig& config) {
  PSD_RETURN_IF_ERROR(CheckWorkerName(text));
  config.name = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseListen(absl::string_view text, DaemonConfig& config) {
  PSD_RETURN_IF_ERROR(ParseHostPort(text));
  config.listen = std::string(text);
  return absl::OkStatus();
}

// The port that is listened on is not known yet, so the check uses any.
absl::Status ParseAdvertise(absl::string_view text, DaemonConfig& config) {
  PSD_RETURN_IF_ERROR(AdvertisedAddress("localhost:1", text).status());
  config.advertise = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseRegistrar(absl::string_view text, DaemonConfig& config) {
  if (text.empty()) {
    config.registrar_name.clear();
    config.registrar_address.clear();
    return absl::OkStatus();
  }
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos)
    return Expected("name=host:port, such as owner0=10.0.0.5:7071", text);
  PSD_RETURN_IF_ERROR(CheckWorkerName(text.substr(0, equals)));
  PSD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(text.substr(equals + 1)));
  if (address.port == 0) return Expected("the registrar's port, which cannot be 0", text);
  config.registrar_name = std::string(text.substr(0, equals));
  config.registrar_address = std::string(text.substr(equals + 1));
  return absl::OkStatus();
}

absl::Status ParseOwners(absl::string_view text, DaemonConfig& config) {
  std::vector<std::string> owners;
  if (!text.empty()) owners = absl::StrSplit(text, ',');
  for (const std::string& name : owners) PSD_RETURN_IF_ERROR(CheckWorkerName(name));
  config.owners = std::move(owners);
  return absl::OkStatus();
}

absl::Status ParseMemoryBudget(absl::string_view text, DaemonConfig& config) {
  PSD_ASSIGN_OR_RETURN(config.memory_budget_bytes, ParseSize(text));
  return absl::OkStatus();
}

struct DeviceKind {
  absl::string_view prefix;
  DeviceConfig::Kind kind;
};
// In the order of DeviceConfig::Kind.
constexpr DeviceKind kDeviceKinds[] = {{"emu:", DeviceConfig::Kind::kEmulated},
                                       {"cuda:", DeviceConfig::Kind::kCuda}};

absl::StatusOr<DeviceConfig> ParseDeviceName(absl::string_view text) {
  constexpr int kMostNumber = 63;
  DeviceConfig device;
  for (const DeviceKind& kind : kDeviceKinds) {
    absl::string_view number = text;
    if (!absl::ConsumePrefix(&number, kind.prefix)) continue;
    device.kind = kind.kind;
    // The comparison refuses other spellings of a number, such as 01.
    const bool is_number = absl::SimpleAtoi(number, &device.number) && device.name() == text;
    if (is_number && device.number >= 0 && device.number <= kMostNumber) return device;
  }
  return Expected(absl::StrCat("a device, emu:N or cuda:N with N from 0 to ", kMostNumber), text);
}

// Reads "emu:0" or "emu:0=2GiB".
absl::StatusOr<DeviceConfig> ParseDevice(absl::string_view text) {
  constexpr size_t kLeastBytes = size_t{1} << 20, kMostBytes = size_t{1} << 40;
  const size_t equals = text.find('=');
  PSD_ASSIGN_OR_RETURN(DeviceConfig device, ParseDeviceName(text.substr(0, equals)));
  if (equals == absl::string_view::npos) return device;
  const absl::string_view budget = text.substr(equals + 1);
  const absl::StatusOr<size_t> bytes = ParseSize(budget);
  if (!bytes.ok() || *bytes < kLeastBytes || *bytes > kMostBytes) {
    return Expected(
        absl::StrCat("a memory budget for ", device.name(), " from ", PrintSize(kLeastBytes),
                     " to ", PrintSize(kMostBytes), ", such as 2GiB"),
        budget);
  }
  device.budget_bytes = *bytes;
  return device;
}

absl::Status ParseDevices(absl::string_view text, DaemonConfig& config) {
  std::vector<DeviceConfig> devices;
  std::vector<absl::string_view> parts;
  if (!text.empty()) parts = absl::StrSplit(text, ',');
  for (absl::string_view part : parts) {
    PSD_ASSIGN_OR_RETURN(const DeviceConfig device, ParseDevice(part));
    for (const DeviceConfig& other : devices) {
      if (other.name() != device.name()) continue;
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(device.name(), " is named twice")),
                        "name each device once");
    }
    devices.push_back(device);
  }
  config.devices = std::move(devices);
  return absl::OkStatus();
}

std::string PrintDevices(const DaemonConfig& config) {
  return absl::StrJoin(config.devices, ",", [](std::string* out, const DeviceConfig& device) {
    absl::StrAppend(out, device.name());
    if (device.budget_bytes != 0) absl::StrAppend(out, "=", PrintSize(device.budget_bytes));
  });
}

absl::Status ParseRoot(absl::string_view text, DaemonConfig& config) {
  const bool fits = text.empty() || (text[0] == '/' && text.size() <= checkpoint::kMaxPathBytes &&
                                     std::none_of(text.begin(), text.end(), absl::ascii_iscntrl));
  if (!fits) return Expected("an absolute path", text);
  config.checkpoint_root = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseSharedFolder(absl::string_view text, DaemonConfig& config) {
  std::string folder(text);
  PSD_RETURN_IF_ERROR(CheckSharedFolder(folder));
  config.shared_memory_folder = std::move(folder);
  return absl::OkStatus();
}

absl::Status ParseLevel(absl::string_view text, DaemonConfig& config) {
  if (ParseLogLevel(text, &config.log_level)) return absl::OkStatus();
  return Expected("debug, info, warning, error or off", text);
}

std::string PrintLevel(const DaemonConfig& config) {
  return std::string(LogLevelName(config.log_level));
}

using C = DaemonConfig;
constexpr ConfigField kFields[] = {
    {"name", "name", kWorkerNameRule, "This owner's name, unique in the job. Required.", ParseName,
     [](const C& c) { return c.name; }},
    {"listen", "host:port", "port 0 to 65535; 0 takes any free port",
     "The address to serve at. Addresses other than loopback need --insecure.", ParseListen,
     [](const C& c) { return c.listen; }},
    {"advertise", "host[:port]",
     "empty, or a host, and a port if it is another than the one listened on",
     "The address at which others reach this owner: a name or address that all hosts of the job "
     "resolve to this host. Required if this owner listens on all interfaces (0.0.0.0). If empty, "
     "others use the address listened on.",
     ParseAdvertise, [](const C& c) { return c.advertise; }},
    {"insecure", "bool", "true or false",
     "Serve beyond loopback without encryption or authentication. Anybody who reaches the port can "
     "then read and change everything, so use this only in networks that you trust.",
     ParseBoolField<&C::insecure>, PrintBool<&C::insecure>},
    {"shared_memory", "bool", "true or false",
     "Exchange messages with workers of the same host and user through shared memory, if both "
     "allow it. All others use the network; psctl status says why.",
     ParseBoolField<&C::shared_memory>, PrintBool<&C::shared_memory>},
    {"shared_memory_folder", "folder", "empty, or an absolute path of at most 64 bytes",
     "A folder in which workers of this host find each other's shared memory although their "
     "network namespaces differ: a volume of several containers. All of them must give it.",
     ParseSharedFolder, [](const C& c) { return c.shared_memory_folder; }},
    {"registrar", "name=host:port", "empty, or a worker's name and address",
     "The owner that hands out ranks and keeps the list of workers. Give all daemons of a job the "
     "same. If empty, this owner is the registrar.",
     ParseRegistrar, FormatRegistrar},
    {"registrar_only", "bool", "true or false",
     "Only hand out ranks and keep the list of workers: host no values, run no functions, and be "
     "no "
     "owner of the job. For jobs whose trainers hold the model themselves.",
     ParseBoolField<&C::registrar_only>, PrintBool<&C::registrar_only>},
    {"owners", "name,name,…", "empty, or names of workers",
     "The names of all owners of the job, including this one. The registrar then lets no other "
     "worker join as an owner, and a save is refused while an owner is missing. If empty, every "
     "worker that joins as an owner is one.",
     ParseOwners, [](const C& c) { return absl::StrJoin(c.owners, ","); }},
    {"memory_budget", "size", "0 to 1024TiB; 0 takes 80 % of what this process may have",
     "The memory that this owner may take, in bytes or with KiB, MiB, GiB, TiB. Hosted values may "
     "take three quarters of it; messages, gradients and results under way have the rest. Requests "
     "for which there is no room are refused with RESOURCE_EXHAUSTED. 0 means 80 % of the "
     "machine's memory or of the lowest limit of its control groups, whichever is less, divided by "
     "daemons_on_host.",
     ParseMemoryBudget, [](const C& c) { return PrintSize(c.memory_budget_bytes); }},
    {"daemons_on_host", "count", "1 to 1024",
     "The number of owners that share the memory of this machine or container. Used only if "
     "memory_budget is 0.",
     ParseInt<&C::daemons_on_host, 1, 1024>, PrintInt<&C::daemons_on_host>},
    {"devices", "name,name=size,…",
     "empty, or emu:N and cuda:N with N from 0 to 63; sizes from 1MiB to 1TiB",
     "The devices besides the CPU on which this owner may host parameters and tables, each with "
     "the memory that these may take there, such as emu:0=2GiB,emu:1. emu:N is an emulated device, "
     "for developing without a GPU: it has 1GiB if no size is given, takes ordinary memory in "
     "addition to memory_budget, and is slow. cuda:N needs a psd that was built with CUDA devices.",
     ParseDevices, PrintDevices},
    {"share_devices", "bool", "true or false",
     "Let workers of the same host and user that use the same devices read this owner's memory "
     "there in place, and read theirs, if they allow it too and messages go through shared memory. "
     "A process that reads such memory can also write to it, so use this only with trainers that "
     "you trust.",
     ParseBoolField<&C::share_devices>, PrintBool<&C::share_devices>},
    {"allow_tf32", "bool", "true or false",
     "Let the devices cuda:N round the f32 factors of matrix products to TF32, which has 10 bits "
     "behind the point instead of 23. Tensor cores multiply it many times as fast.",
     ParseBoolField<&C::allow_tf32>, PrintBool<&C::allow_tf32>},
    {"checkpoint_root", "folder", "empty, or an absolute path",
     "The folder below which this owner writes its own files of a save. The worker that saves must "
     "see the same folder at the same path: on one host, or on a file system that both mount. If "
     "empty, this owner sends its values to the worker that saves, which writes them.",
     ParseRoot, [](const C& c) { return c.checkpoint_root; }},
    {"threads", "count", "1 to 1024",
     "The number of threads that run functions and programs, and of those that run large steps.",
     ParseInt<&C::threads, 1, 1024>, PrintInt<&C::threads>},
    {"max_queued_functions", "count", "1 to 1000000",
     "The number of calls that may wait for a thread. One session may fill half of these places. "
     "Further calls are refused with RESOURCE_EXHAUSTED.",
     ParseInt<&C::max_queued_functions, 1, 1'000'000>, PrintInt<&C::max_queued_functions>},
    {"lease", "time", "100ms to 1h",
     "How long this owner keeps what a silent peer holds here (references, contexts, pins).",
     ParseTime<&C::lease, 100, 3'600'000>, PrintTime<&C::lease>},
    {"retry_window", "time", "100ms to 1h, at least the lease",
     "How long a call to a peer that does not answer is retried.",
     ParseTime<&C::retry_window, 100, 3'600'000>, PrintTime<&C::retry_window>},
    {"drain_timeout", "time", "0 to 1h",
     "How long SIGTERM waits for running calls before it cancels them. The service manager's stop "
     "timeout must be longer.",
     ParseTime<&C::drain_timeout, 0, 3'600'000>, PrintTime<&C::drain_timeout>},
    {"log_level", "level", "debug, info, warning, error or off", "The lowest level that is logged.",
     ParseLevel, PrintLevel},
    {"log_json", "bool", "true or false", "Log one JSON object per line instead of text.",
     ParseBoolField<&C::log_json>, PrintBool<&C::log_json>},
};

}  // namespace

std::string DeviceConfig::name() const {
  return absl::StrCat(kDeviceKinds[static_cast<size_t>(kind)].prefix, number);
}

absl::Span<const ConfigField> ConfigFields() {
  return kFields;
}

const ConfigField* FindConfigField(absl::string_view name) {
  for (const ConfigField& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

void ConfigBuilder::AddProblem(absl::string_view place, absl::string_view problem) {
  problems_.push_back(absl::StrCat(place, ": ", problem));
}

void ConfigBuilder::Set(absl::string_view place, absl::string_view name, absl::string_view text) {
  const ConfigField* field = FindConfigField(name);
  if (field == nullptr) {
    NearestNameFinder finder(name);
    for (const ConfigField& known : kFields) finder.Consider(known.name);
    return AddProblem(place,
                      absl::StrCat("unknown key ", Quoted(name), DidYouMean(finder.nearest())));
  }
  places_[std::string(name)] = std::string(place);
  absl::Status status = field->parse(text, config_);
  if (!status.ok()) AddProblem(place, absl::StrCat(name, ": ", status.message()));
}

std::string ConfigBuilder::PlaceOf(absl::string_view name) const {
  auto it = places_.find(std::string(name));
  return it == places_.end() ? "configuration" : it->second;
}

void ConfigBuilder::CheckName(std::vector<std::string>* problems) const {
  if (!config_.name.empty() || IsSet("name")) return;
  problems->push_back(
      "configuration: name: missing; give this owner a name that is unique in the job, such as "
      "'name: owner0' or --name owner0");
}

void ConfigBuilder::CheckListen(std::vector<std::string>* problems) const {
  absl::StatusOr<HostPort> address = ParseHostPort(config_.listen);
  if (!address.ok() || address->IsLoopback() || config_.insecure) return;
  problems->push_back(absl::StrCat(
      PlaceOf("listen"), ": listen: ", Quoted(config_.listen),
      " is reachable from other machines, and nothing would be encrypted or authenticated; listen "
      "on 127.0.0.1, or accept that on a trusted network with 'insecure: true' (--insecure)"));
}

void ConfigBuilder::CheckAdvertise(std::vector<std::string>* problems) const {
  if (!NeedsAdvertise(config_.listen) || !config_.advertise.empty()) return;
  problems->push_back(absl::StrCat(
      PlaceOf("listen"), ": listen: ", Quoted(config_.listen),
      " is all interfaces, which nobody can dial; say with 'advertise: HOST' (--advertise) by what "
      "name or address other hosts reach this owner"));
}

void ConfigBuilder::CheckOwners(std::vector<std::string>* problems) const {
  const std::vector<std::string>& owners = config_.owners;
  if (owners.empty() || config_.name.empty() || config_.registrar_only) return;
  for (const std::string& name : {config_.name, config_.registrar_name}) {
    if (name.empty() || std::find(owners.begin(), owners.end(), name) != owners.end()) continue;
    problems->push_back(absl::StrCat(PlaceOf("owners"), ": owners: ", Quoted(name),
                                     " is an owner of the job too; name it here"));
  }
}

void ConfigBuilder::CheckRegistrarOnly(std::vector<std::string>* problems) const {
  if (!config_.registrar_only) return;
  const std::string place = absl::StrCat(PlaceOf("registrar_only"), ": registrar_only: ");
  if (!config_.IsRegistrar()) {
    problems->push_back(
        absl::StrCat(place, "the registrar is ", Quoted(config_.registrar_name),
                     ", so this daemon would do nothing; leave out one of the two"));
  }
  if (!config_.devices.empty()) {
    problems->push_back(absl::StrCat(place, config_.devices[0].name(),
                                     " would host nothing then; leave out one of the two"));
  }
  const std::vector<std::string>& owners = config_.owners;
  if (std::find(owners.begin(), owners.end(), config_.name) != owners.end()) {
    problems->push_back(absl::StrCat(place, Quoted(config_.name),
                                     " is then no owner of the job; leave it out of 'owners'"));
  }
}

void ConfigBuilder::CheckTimes(std::vector<std::string>* problems) const {
  if (config_.retry_window >= config_.lease) return;
  problems->push_back(absl::StrCat(
      PlaceOf("retry_window"), ": retry_window: ", absl::FormatDuration(config_.retry_window),
      " is shorter than the lease, ", absl::FormatDuration(config_.lease),
      "; a peer that comes back within its lease must still be tried"));
}

void ConfigBuilder::CheckRoot(std::vector<std::string>* problems) const {
  if (config_.checkpoint_root.empty()) return;
  const absl::Status opened = checkpoint::CheckpointRoot::Open(config_.checkpoint_root).status();
  if (opened.ok()) return;
  problems->push_back(
      absl::StrCat(PlaceOf("checkpoint_root"), ": checkpoint_root: ", opened.message(),
                   "; name a folder that this owner may write to, or leave it out"));
}

absl::StatusOr<DaemonConfig> ConfigBuilder::Build() const {
  std::vector<std::string> problems = problems_;
  CheckName(&problems);
  CheckListen(&problems);
  CheckAdvertise(&problems);
  CheckOwners(&problems);
  CheckRegistrarOnly(&problems);
  CheckTimes(&problems);
  CheckRoot(&problems);
  if (problems.empty()) return config_;
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

std::string FormatConfig(const DaemonConfig& config) {
  std::string text;
  for (const ConfigField& field : kFields) {
    // The value is quoted, because some names and addresses mean something else in YAML: [::]:1,
    // null, -.
    const bool is_text = absl::StrContains(field.type, "host") ||
                         absl::StrContains(field.type, "name") || field.type == "folder";
    const absl::string_view quote = is_text ? "'" : "";
    const std::string value = absl::StrReplaceAll(field.print(config), {{"'", "''"}});
    absl::StrAppend(&text, field.name, ": ", quote, value, quote, "\n");
  }
  return text;
}

std::string FormatRegistrar(const DaemonConfig& config) {
  if (config.registrar_name.empty()) return "";
  return absl::StrCat(config.registrar_name, "=", config.registrar_address);
}

}  // namespace psd::server
