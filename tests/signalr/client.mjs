// The official SignalR client as a runner of Hawser's embedded hub.
//
// Reads the hub's address and the runner's identity from the environment, completes pushed tasks, and prints one JSON
// line per event. Exits with 0 when the hub pushes "Stop".

import * as signalR from "@microsoft/signalr";

const { HUB_URL, ORGANIZATION_ID, RUNNER_ID, CLIENT_ID, CLIENT_SECRET, INSTANCE } = process.env;

const print = (event, more = {}) => console.log(JSON.stringify({ event, ...more }));

async function token() {
  const answer = await fetch(`${HUB_URL}/connect/token`, {
    method: "POST",
    body: new URLSearchParams({
      grant_type: "client_credentials",
      scope: "snapcd_scope",
      client_id: `${ORGANIZATION_ID}:${CLIENT_ID}`,
      client_secret: CLIENT_SECRET,
    }),
  });
  return (await answer.json()).access_token;
}

const query = new URLSearchParams({
  organization_id: ORGANIZATION_ID,
  runner_id: RUNNER_ID,
  runner_instance: INSTANCE,
});

const connection = new signalR.HubConnectionBuilder()
  .withUrl(`${HUB_URL}/runnerhub?${query}`, { accessTokenFactory: token })
  .withAutomaticReconnect([0, 100, 200, 400, 800, 1600, 3200])
  .configureLogging(signalR.LogLevel.None)
  .build();

connection.on("GetDefinitiveRevision", async (request) => {
  const { jobId, metadata } = request;
  const now = new Date().toISOString();
  const { stackName, namespaceName, moduleName, moduleId } = metadata;
  await connection.invoke("ReportRunningTask", jobId, "GetDefinitiveRevision", RUNNER_ID, INSTANCE);
  await connection.invoke("AddLogs", [
    {
      jobId, timestamp: now, batchTimeStamp: now, stackId: null, namespaceId: null, moduleId, stackName,
      namespaceName, moduleName, level: 2, message: "grüße aus node", taskName: "GetDefinitiveRevision", tags: null,
    },
  ]);
  try {
    await connection.invoke("InitCompleted", jobId);
  } catch (error) {
    print("refused", { error: error.message });
  }
  await connection.invoke("GetDefinitiveRevisionCompleted", jobId, "c0ffee");
});
connection.on("Ask", async (number) => ({ answer: number + 1 }));
connection.on("Stop", () => connection.stop());

connection.onreconnected(() => print("reconnected"));
connection.onclose((error) => {
  print("closed", { error: error?.message ?? null });
  process.exit(error ? 1 : 0);
});

await connection.start();
print("connected");
