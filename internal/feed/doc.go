// Package feed keeps the committed changes of a store in a segmented log, in order, for those who read them later or from
// somewhere else: history, the state at an earlier time, and subscribers.
//
// It owns which changes are kept, for how long, and that the log agrees with the store. Enter at Open and Feed.Run. It never
// decodes values, and a commit never waits for it. docs/adr/0015-the-change-feed.md has the reasons; seglog has the files.
package feed
