// psctl load: loads a save into the owners of a job.

#include <unistd.h>

#include <cstdio>
#include <string>

#include "client/checkpoint.h"
#include "tools/cli/command.h"
#include "tools/cli/job.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/table.h"

namespace psd::cli {

absl::Status RunLoad(const Options& options, const std::vector<std::string>& arguments) {
  LoadOptions load;
  load.dir = arguments[0];
  load.spread = options.spread;
  load.only_missing = options.only_missing;
  load.accept_skew = options.accept_skew;
  if (!options.map.empty()) {
    PSD_ASSIGN_OR_RETURN(auto pairs, ParsePairs("--map", options.map));
    load.owner_map.insert(pairs.begin(), pairs.end());
  }
  PSD_ASSIGN_OR_RETURN(
      std::unique_ptr<Worker> worker,
      AttachToJob(options,
                  ", or name the owners to load into: psctl load --owners NAME=ADDRESS,…"));
  LoadSummary loaded;
  {
    ProgressBar bar(stderr, ::isatty(STDERR_FILENO) == 1);
    load.progress = [&](const TransferProgress& progress) {
      bar.Show(progress.activity, progress.bytes, progress.total_bytes, absl::Now());
      return true;
    };
    PSD_ASSIGN_OR_RETURN(loaded, LoadModel(*worker, load));
  }
  std::printf("loaded %s from %s, %zu optimizers\n", FormatBytes(loaded.bytes).c_str(),
              loaded.folder.c_str(), loaded.optimizers);
  for (const auto& [owner, values] : loaded.values)
    std::printf("%s: %zu values\n", Printable(owner).c_str(), values);
  return worker->Shutdown();
}

}  // namespace psd::cli
