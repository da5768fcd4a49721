#pragma once

// Runs the ranks of a job on this machine, with a registrar if they have none, until all have
// ended.

#include <poll.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/cli/child_process.h"
#include "tools/cli/keeper.h"
#include "tools/cli/output_sink.h"
#include "tools/cli/tagged_lines.h"

namespace psd::cli {

struct JobSpec {
  std::vector<std::string> command;  // what every rank runs
  int ranks = 1;
  std::string name_prefix = "rank";  // rank 2 is the worker "rank2"
  std::string owners;                // "owner0=10.0.0.5:7071,…"; empty: a registrar is started
  int restarts = 0;                  // how often each rank is started again after it died
  absl::Duration grace;              // from SIGTERM to SIGKILL
  std::string psd;                   // the daemon's program, for the registrar
};

// Works on one thread, which waits for all of its processes together, in one place. Can be used
// once.
class Launcher {
 public:
  explicit Launcher(JobSpec spec);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Runs the job to its end. Passes on SIGINT, SIGTERM and SIGHUP; a second one kills the ranks.
  // Changes the signal mask and the signal handlers of the process. Errors, each with the exit code
  // of the process (ExitCodeOf): the first rank that died and was not started again, the signal
  // that ended the job, or the reason why it could not start. If several ranks are found dead at
  // the same time, one that a signal killed counts as the first.
  absl::Status Run();

 private:
  // One of the two streams that a process writes.
  struct Stream {
    int descriptor = -1;  // owned by the process
    TaggedLines lines;
    int left = 0;  // the bytes to read once the process has ended
  };
  // A rank or the registrar.
  struct Process {
    std::string title;  // "rank 2"
    std::string tag;    // "[2] ", in front of its lines
    ChildSpec spec;
    bool is_registrar = false;
    int restarts = 0;  // so far
    std::unique_ptr<ChildProcess> child;
    std::optional<int> wait_status;        // set when it has ended
    std::optional<Stream> output, errors;  // set while more output may come
  };

  absl::Status Prepare();
  absl::Status StartRegistrar();
  absl::Status StartRanks();
  absl::Status Start(Process& process);
  ChildSpec SpecOfRank(int rank) const;

  bool Running() const;
  // Waits until something happens, and handles it.
  void Turn();
  std::vector<pollfd> Awaited();
  void TakeSignals();
  void ReadAddress();
  // Notes the ends of processes that have ended. Returns whether there was one.
  bool ReapAny();
  // Reads what a process has written so far. When all output of an ended process has been read,
  // handles its end.
  void ReadFrom(Process& process);
  void ReadStream(bool last, OutputSink& sink, std::optional<Stream>* stream);
  void Ended(Process& process);
  void Fail(absl::Status why);
  // Asks all ranks to stop, once, and bounds how long that may take.
  void Stop(int number);
  void KillLate();
  // Ends the registrar when no rank runs or will run.
  void EndRegistrarLast();
  int RunningRanks() const;
  // Whether a signal has ended the process.
  static bool WasKilled(const Process& process);
  void Say(const std::string& line) { errors_.Add(line); }
  OutputSink& output() { return shared_output_ ? errors_ : output_; }

  const JobSpec spec_;
  std::unique_ptr<Keeper> keeper_;
  std::vector<std::unique_ptr<Process>> processes_;
  OutputSink output_, errors_;
  // Whether both are the same pipe or file. One sink then keeps the lines of both whole.
  bool shared_output_ = false;
  int signals_ = -1;  // a signalfd
  // Reads from the registrar; -1 when its address is known, or there is no registrar.
  int address_pipe_ = -1;
  std::string registrar_;              // "registrar=127.0.0.1:43210", once it is known
  absl::Status failure_;               // the first one
  int stopped_by_ = 0;                 // the signal that ended the job
  std::optional<absl::Time> kill_at_;  // set while it stops
  bool impatient_ = false;             // whether a second signal has come
};

}  // namespace psd::cli
