#include "core/checkpoint/save_names.h"

#include <string>

#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

TEST(SaveNames, AnOwnersFilesAreItsOwn) {
  for (const char* name :
       {"values-a.safetensors", "state-a-0.safetensors", "state-a-17.safetensors"})
    EXPECT_TRUE(IsFileOf("a", name)) << name;
  EXPECT_TRUE(IsFileOf("a-1", StateFileName("a-1", 2)));
  EXPECT_TRUE(IsFileOf("node:1", ValuesFileName("node:1")));
  for (const char* name :
       {"", "values-b.safetensors", "values-a", "values-a.safetensors ", "state-a.safetensors",
        "state-a-.safetensors", "state-a-01.safetensors", "state-a--1.safetensors",
        "state-a-+1.safetensors", "state-a- 1.safetensors", "state-a-1-1.safetensors",
        "state-a-99999999999999999999999.safetensors", "../values-a.safetensors",
        "values-a.safetensors/", "index.json", "latest", "token"})
    EXPECT_FALSE(IsFileOf("a", name)) << name;
  EXPECT_FALSE(IsFileOf(std::string(250, 'a'), ValuesFileName(std::string(250, 'a'))));
}

TEST(SaveNames, UnfinishedSaves) {
  EXPECT_TRUE(IsUnfinishedName(UnfinishedName("1f-2")));
  EXPECT_FALSE(IsUnfinishedName(UnfinishedName("")));
  EXPECT_FALSE(IsUnfinishedName(UnfinishedName("..")));
  EXPECT_FALSE(IsUnfinishedName(UnfinishedName("a/b")));
  EXPECT_FALSE(IsUnfinishedName(UnfinishedName(std::string(250, 'a'))));
  EXPECT_FALSE(IsUnfinishedName("saves"));
}

}  // namespace
}  // namespace psd::checkpoint
