// psctl save: saves the whole job to a folder while it runs.

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_join.h"
#include "client/checkpoint.h"
#include "tools/cli/command.h"
#include "tools/cli/job.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/table.h"

namespace psd::cli {

absl::Status RunSave(const Options& options, const std::vector<std::string>& arguments) {
  PSD_ASSIGN_OR_RETURN(
      std::unique_ptr<Worker> worker,
      AttachToJob(options, ", or save without their values: psctl save --leave_out NAME,…"));
  SaveOptions save;
  save.dir = arguments[0];
  save.name = options.name;
  save.leave_out = LeftOut(options);
  if (options.full_speed) save.busy_share = 1;
  SaveSummary saved;
  {
    ProgressBar bar(stderr, ::isatty(STDERR_FILENO) == 1);
    save.progress = [&](const TransferProgress& progress) {
      bar.Show(progress.activity, progress.bytes, progress.total_bytes, absl::Now());
      return true;
    };
    PSD_ASSIGN_OR_RETURN(saved, SaveModel(*worker, save));
  }
  for (const std::string& text : saved.left_out)
    std::fprintf(stderr, "left out: %s\n", Printable(text).c_str());
  for (const std::string& text : saved.streamed)
    std::fprintf(stderr, "not written by its owner: %s\n", Printable(text).c_str());
  std::printf("saved %zu values and %zu optimizers of %s, %s, as %s\n", saved.values,
              saved.optimizers, absl::StrJoin(worker->owners(), ", ").c_str(),
              FormatBytes(saved.bytes).c_str(), saved.folder.c_str());
  return worker->Shutdown();
}

}  // namespace psd::cli
