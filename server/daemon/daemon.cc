#include "server/daemon/daemon.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/small_memory_limit.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/base/version.h"
#include "server/daemon/command_line.h"
#include "server/daemon/config_file.h"
#include "server/daemon/exhaustion.h"
#include "server/daemon/malloc_memory.h"
#include "server/daemon/memory_limit.h"
#include "server/daemon/notify.h"
#include "server/daemon/stop_bound.h"

namespace psd::server {
namespace {

// The interval at which a busy daemon checks how much freed memory malloc keeps.
constexpr absl::Duration kTrimPeriod = absl::Seconds(1);

// The time that a stop may take after drain_timeout, when there is nothing left to wait for.
constexpr absl::Duration kStopGrace = absl::Seconds(10);

constexpr char kDevName[] = "owner0";
constexpr char kAnyLoopbackPort[] = "127.0.0.1:0";

// Makes the process-wide settings that must come before the first thread.
void SetUpProcess() {
  ExitWhenExhausted(kExitExhausted);
  // The packaged absl::Mutex, which gRPC uses, checks for deadlocks at every lock, which makes it
  // ten times slower.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  signal(SIGPIPE, SIG_IGN);
  // These signals ask other programs for a reload or a report, and a closing terminal sends SIGHUP.
  // By default they would end the owner, and its parameters would be lost.
  for (int number : {SIGHUP, SIGUSR1, SIGUSR2}) signal(number, SIG_IGN);
  // Every connection takes descriptors, so the soft limit is raised to the hard one. It is low only
  // for programs that use select(2).
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int WaitForStopSignal() {
  const sigset_t signals = StopSignals();
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  return number;
}

ExitCode ExitCodeOf(const absl::Status& failed_start) {
  if (absl::IsUnavailable(failed_start)) return kExitCannotListen;
  if (absl::IsUnimplemented(failed_start)) return kExitUsage;  // a device that psd cannot have
  return absl::IsResourceExhausted(failed_start) ? kExitExhausted : kExitFailure;
}

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "psd: %s\n", std::string(status.message()).c_str());
  return code;
}

// Prints the problems, one per line, each behind the program's name.
int FailWithProblems(const absl::Status& status) {
  std::string text(status.message());
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; ++at)
    text.insert(at + 1, "psd: ");
  std::fprintf(stderr, "psd: %s\npsd: nothing was started; --help lists all flags\n", text.c_str());
  return kExitUsage;
}

absl::StatusOr<DaemonConfig> MakeConfig(const CommandLine& line, bool* may_move) {
  DaemonConfig defaults;
  if (line.dev) {
    defaults.name = kDevName;
    defaults.log_level = LogLevel::kWarning;
  }
  ConfigBuilder builder(defaults);
  if (!line.config_path.empty()) AddConfigFile(line.config_path, builder);
  for (const auto& [name, text] : line.fields) builder.Set(absl::StrCat("--", name), name, text);
  *may_move = line.dev && !builder.IsSet("listen");
  return builder.Build();
}

void PrintHowToConnect(const std::string& name, const std::string& address) {
  std::printf(
      "psd %s ready at %s\n"
      "  in C++:  psd::WorkerOptions options;  options.name = \"trainer0\";\n"
      "           options.owners = {{\"%s\", \"%s\"}};\n"
      "  look:    tools/psctl status --address %s\n"
      "  stop:    Ctrl-C\n",
      name.c_str(), address.c_str(), name.c_str(), address.c_str(), address.c_str());
}

class Daemon {
 public:
  Daemon(const CommandLine& line, DaemonConfig config, bool may_move)
      : line_(line),
        config_(std::move(config)),
        may_move_(may_move),
        logger_(NewStderrLogger(config_.log_level, config_.log_json)) {}

  int Run(ServerExtensions extensions) {
    SetMemoryBudget();
    absl::Status started = Start(std::move(extensions));
    if (!started.ok()) {
      return Fail(ExitCodeOf(started), started);
    }
    TrimMallocLater();
    absl::Status announced = Announce();
    if (!announced.ok()) return Fail(kExitFailure, announced);
    const int number = WaitForStopSignal();
    Drain(number);
    return kExitOk;
  }

 private:
  void SetMemoryBudget() {
    std::string why = "as configured";
    if (config_.memory_budget_bytes == 0) {
      const MemoryLimit limit = FindMemoryLimit();
      config_.memory_budget_bytes = DefaultMemoryBudget(limit, config_.daemons_on_host);
      why = absl::StrCat("80 % of ", limit.source, ", ", limit.bytes,
                         " bytes, divided by daemons_on_host = ", config_.daemons_on_host,
                         "; 64 MiB of a share, or half of a small one, are left free");
    }
    malloc_.emplace(config_.memory_budget_bytes / 32);
    LimitKeptSmallMemory(config_.memory_budget_bytes);
    logger_->Log(
        LogLevel::kInfo, "memory_budget",
        absl::StrCat("the memory budget is ", config_.memory_budget_bytes, " bytes: ", why),
        {{"bytes", config_.memory_budget_bytes}});
  }

  void TrimMallocLater() {
    server_->runtime().timers().RunAfter(kTrimPeriod, [this] {
      malloc_->TrimIfWorth();
      TrimMallocLater();
    });
  }

  absl::Status Start(ServerExtensions extensions) {
    absl::Status first = TryStart(config_, extensions);
    if (first.code() != absl::StatusCode::kUnavailable || !may_move_) return first;
    DaemonConfig moved = config_;
    moved.listen = kAnyLoopbackPort;
    return TryStart(moved, std::move(extensions));
  }

  absl::Status TryStart(const DaemonConfig& config, ServerExtensions extensions) {
    server_.reset();  // its devices are opened again
    PSD_ASSIGN_OR_RETURN(server_, Server::Create(config, std::move(extensions), logger_));
    PSD_ASSIGN_OR_RETURN(address_, server_->Start());
    return absl::OkStatus();
  }

  absl::Status Announce() {
    if (!line_.address_file.empty())
      PSD_RETURN_IF_ERROR(WriteWholeFile(line_.address_file, address_));
    if (line_.ready_fd >= 0) PSD_RETURN_IF_ERROR(WriteToDescriptor(line_.ready_fd, address_));
    if (line_.dev) {
      PrintHowToConnect(config_.name, address_);
    } else {
      std::printf("psd %s ready at %s\n", config_.name.c_str(), address_.c_str());
    }
    std::fflush(stdout);
    NotifyManager("READY=1");
    logger_->Log(LogLevel::kInfo, "daemon_ready",
                 absl::StrCat(config_.name, " serves at ", address_),
                 {{"worker", config_.name},
                  {"incarnation", IncarnationToString(server_->runtime().incarnation())},
                  {"address", address_},
                  {"registrar", server_->runtime().options().registrar},
                  {"version", kVersion}});
    return absl::OkStatus();
  }

  // Tells the service manager a state. A failure is only logged.
  void NotifyManager(const char* state) {
    const char* socket = std::getenv("NOTIFY_SOCKET");
    const absl::Status told = NotifyServiceManager(socket == nullptr ? "" : socket, state);
    if (told.ok()) return;
    logger_->Log(LogLevel::kWarning, "notify_failed", "could not tell the service manager",
                 {{"state", state}, {"error", told.ToString()}});
  }

  void Drain(int number) {
    NotifyManager("STOPPING=1");
    logger_->Log(LogLevel::kInfo, "daemon_draining", "refuses new calls, finishes those that run",
                 {{"signal", strsignal(number)},
                  {"drain_timeout", absl::FormatDuration(config_.drain_timeout)}});
    EndAtSecondSignal();
    EndWhenStopTakesLonger(config_.drain_timeout + kStopGrace, kExitStopHung);
    server_->Shutdown(config_.drain_timeout);
    logger_->Log(LogLevel::kInfo, "daemon_stopped", absl::StrCat(config_.name, " has stopped"),
                 {{"exit_code", static_cast<int>(kExitOk)}});
  }

  // Makes a second stop signal end the process at once.
  void EndAtSecondSignal() {
    auto waits = StartThread("a thread that waits for a second signal", [logger = logger_] {
      WaitForStopSignal();
      logger->Log(LogLevel::kWarning, "daemon_stopped", "a second stop signal cut calls off",
                  {{"exit_code", static_cast<int>(kExitImpatient)}});
      std::_Exit(kExitImpatient);
    });
    if (waits.ok()) return waits->detach();
    // If the thread could not be started, the signal itself ends the process, without a log line.
    const sigset_t signals = StopSignals();
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }

  const CommandLine& line_;
  DaemonConfig config_;
  const bool may_move_;
  const std::shared_ptr<Logger> logger_;  // shared with the server
  std::optional<BoundedMalloc> malloc_;   // once the budget is known
  std::unique_ptr<Server> server_;
  std::string address_;
};

}  // namespace

int RunDaemon(int argc, char** argv, ServerExtensions extensions) {
  SetUpProcess();
  auto line = ParseCommandLine(
      absl::MakeConstSpan(argv + (argc > 0 ? 1 : 0), static_cast<size_t>(argc > 0 ? argc - 1 : 0)));
  if (!line.ok()) return FailWithProblems(line.status());
  if (line->help) return std::fputs(UsageText().c_str(), stdout) < 0 ? kExitFailure : kExitOk;
  if (line->version) return std::printf("psd %s\n", kVersion) < 0 ? kExitFailure : kExitOk;

  bool may_move = false;
  auto config = MakeConfig(*line, &may_move);
  if (!config.ok()) return FailWithProblems(config.status());
  if (line->check_config)
    return std::fputs(FormatConfig(*config).c_str(), stdout) < 0 ? kExitFailure : kExitOk;

  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return Daemon(*line, *config, may_move).Run(std::move(extensions));
}

}  // namespace psd::server
