// psctl status: prints the status of a worker.

#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/command.h"
#include "tools/cli/connection.h"
#include "tools/cli/table.h"

namespace psd::cli {
namespace {

void Section(const char* title, uint64_t count, const Table& table, const Options& options) {
  if (table.empty()) return;
  std::printf("\n%s (%llu)\n%s", title, static_cast<unsigned long long>(count),
              table.ToString(options.color).c_str());
}

void PrintSummary(const v1::WorkerStatus& status) {
  const v1::MemoryStatus& memory = status.memory();
  const v1::ExecutorStatus& executor = status.executor();
  const v1::ReferenceStatus& references = status.references();
  const std::string budget = memory.budget_bytes() == 0
                                 ? "no limit"
                                 : absl::StrCat("of ", FormatBytes(memory.budget_bytes()));
  std::printf("%s at %s, version %s, incarnation %s, up %s\n", Printable(status.name()).c_str(),
              Printable(status.address()).c_str(), Printable(status.version()).c_str(),
              FormatIncarnation(status.incarnation()).c_str(),
              FormatSeconds(status.uptime_s()).c_str());
  std::printf("registrar:  %s%s\n", Printable(status.registrar()).c_str(),
              status.hosts_nothing() ? " (this daemon, which hosts no values)" : "");
  std::printf("memory:     %s of values and %s in transit, %s\n",
              FormatBytes(memory.used_bytes()).c_str(), FormatBytes(memory.transit_bytes()).c_str(),
              budget.c_str());
  std::printf("threads:    %u, %u idle, %u blocked; %llu calls queued\n", executor.threads(),
              executor.idle(), executor.blocked(),
              static_cast<unsigned long long>(executor.queued()));
  std::printf("references: %llu values with %llu forks elsewhere; %llu held here; %llu anonymous\n",
              static_cast<unsigned long long>(references.owners()),
              static_cast<unsigned long long>(references.forks()),
              static_cast<unsigned long long>(references.users()),
              static_cast<unsigned long long>(references.anonymous_values()));
  std::printf("programs:   %llu cached\n",
              static_cast<unsigned long long>(status.programs_cached()));
}

void PrintDevices(const v1::WorkerStatus& status, const Options& options) {
  Table table({"DEVICE", ">USED", ">BUDGET", "STATE"});
  for (const v1::DeviceStatus& device : status.devices()) {
    table.AddRow({device.name(), FormatBytes(device.used_bytes()),
                  FormatBytes(device.budget_bytes()), device.lost().empty() ? "-" : device.lost()});
  }
  Section("devices", static_cast<uint64_t>(status.devices_size()), table, options);
}

void PrintValues(const v1::WorkerStatus& status, const Options& options) {
  Table table({"NAME", "KIND", "DTYPE", "SHAPE", "DEVICE", ">VERSION", ">MEMORY", ">PINNED"});
  for (const v1::NamedValue& value : status.values()) {
    const bool tensor = !value.dtype().empty();
    table.AddRow({value.name(), value.kind(), tensor ? value.dtype() : "-",
                  tensor ? FormatShape({value.shape().begin(), value.shape().end()}) : "-",
                  value.device().empty() ? "-" : value.device(),
                  tensor ? absl::StrCat(value.version()) : "-", FormatBytes(value.bytes()),
                  tensor ? absl::StrCat(value.old_versions_pinned()) : "-"});
  }
  Section("named values", status.named_values(), table, options);
}

void PrintOptimizers(const v1::WorkerStatus& status, const Options& options) {
  Table table({"NAME", ">PARAMETERS", ">STEPS", ">SKIPPED", ">WAITING", ">STALENESS", ">MOST",
               ">STATE", "OPTIONS"});
  for (const v1::OptimizerState& optimizer : status.optimizers()) {
    table.AddRow({optimizer.name(), absl::StrCat(optimizer.parameters()),
                  absl::StrCat(optimizer.steps()), absl::StrCat(optimizer.skipped()),
                  optimizer.members() == 0
                      ? "-"
                      : absl::StrCat(optimizer.waiting(), "/", optimizer.members()),
                  absl::StrFormat("%.2f", optimizer.mean_staleness()),
                  absl::StrCat(optimizer.max_staleness()), FormatBytes(optimizer.state_bytes()),
                  optimizer.spec()});
  }
  Section("optimizers", static_cast<uint64_t>(status.optimizers_size()), table, options);
}

void PrintStaleness(const v1::WorkerStatus& status, const Options& options) {
  Table table({"OPTIMIZER", "PARAMETER", ">LAST", ">MEAN", ">MOST", ">STEPS"});
  uint64_t rows = 0;
  for (const v1::OptimizerState& optimizer : status.optimizers()) {
    for (const v1::ParameterStaleness& each : optimizer.staleness()) {
      if (each.most() == 0) continue;
      ++rows;
      table.AddRow({optimizer.name(), each.parameter(), absl::StrCat(each.last()),
                    absl::StrFormat("%.2f", each.mean()), absl::StrCat(each.most()),
                    absl::StrCat(each.steps())});
    }
  }
  Section("gradients that came late, in versions", rows, table, options);
}

// Returns "grpc", "shm", or "none" if the worker is not connected.
std::string CarrierOf(const v1::PeerState& peer) {
  return peer.connected() ? peer.link().substr(0, peer.link().find(' ')) : "none";
}

void PrintPeers(const v1::WorkerStatus& status, const Options& options) {
  Table table({"WORKER", "INCARNATION", "CARRIER", ">EPOCH HERE", ">THERE", ">LEASE LEFT",
               ">PENDING", ">SERVING", ">REMEMBERED", "WHY NOT SHARED MEMORY", "DEVICE MEMORY"});
  for (const v1::PeerState& peer : status.peers()) {
    table.AddRow({peer.name(), FormatIncarnation(peer.incarnation()), CarrierOf(peer),
                  absl::StrCat(peer.epoch_here()), absl::StrCat(peer.epoch_there()),
                  peer.epoch_here() == 0 ? "-" : FormatSeconds(peer.lease_left_s()),
                  absl::StrCat(peer.calls_pending()), absl::StrCat(peer.calls_serving()),
                  absl::StrCat(peer.answers_remembered()),
                  peer.why_not_shared().empty() ? "-" : peer.why_not_shared(),
                  peer.device_memory().empty() ? "-" : peer.device_memory()});
  }
  Section("sessions with workers", static_cast<uint64_t>(status.peers_size()), table, options);
}

void PrintClients(const v1::WorkerStatus& status, const Options& options) {
  Table table({"CLIENT", "SESSION", ">LEASE LEFT", ">CONTEXTS", ">REMEMBERED"});
  for (const v1::ClientSession& client : status.clients()) {
    table.AddRow({client.client(), FormatIncarnation(client.session()),
                  FormatSeconds(client.lease_left_s()), absl::StrCat(client.contexts()),
                  absl::StrCat(client.answers_remembered())});
  }
  Section("sessions of the unary service", static_cast<uint64_t>(status.clients_size()), table,
          options);
}

void PrintContexts(const v1::WorkerStatus& status, const Options& options) {
  Table table({"CONTEXT", ">SENDS", ">GRADIENTS", ">MEMORY", ">WORKERS"});
  for (const v1::ContextEntry& context : status.contexts()) {
    table.AddRow({absl::StrCat(FormatIncarnation(context.incarnation()), "/", context.counter()),
                  absl::StrCat(context.sends()), absl::StrCat(context.gradients()),
                  FormatBytes(context.gradient_bytes()), absl::StrCat(context.known_workers())});
  }
  Section("autograd contexts", status.contexts_held(), table, options);
}

absl::Status PrintJson(const v1::WorkerStatus& status) {
  google::protobuf::util::JsonPrintOptions print;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(status, &text, print);
  if (!printed.ok()) return absl::InternalError("the answer cannot be printed as JSON");
  std::printf("%s\n", text.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunStatus(const Options& options, const std::vector<std::string>&) {
  Connection connection(options);
  v1::WorkerStatus status;
  absl::Status asked =
      connection.Call(&v1::ParameterService::Stub::Status, v1::StatusRequest(), &status);
  if (!asked.ok()) return asked;
  if (options.json) return PrintJson(status);
  PrintSummary(status);
  PrintDevices(status, options);
  PrintValues(status, options);
  PrintOptimizers(status, options);
  PrintStaleness(status, options);
  PrintPeers(status, options);
  PrintClients(status, options);
  PrintContexts(status, options);
  return absl::OkStatus();
}

}  // namespace psd::cli
