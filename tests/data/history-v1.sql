BEGIN TRANSACTION;
CREATE TABLE evidence (
	id INTEGER NOT NULL, 
	"key" VARCHAR(32) NOT NULL, 
	cluster VARCHAR(200) NOT NULL, 
	node VARCHAR(200), 
	job VARCHAR(200), 
	kind VARCHAR(40) NOT NULL, 
	seen_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE ("key")
);
INSERT INTO "evidence" VALUES(1,'907be9522b8ee032','alpha','alpha1',NULL,'xid',1001.0,'{"source":"kernel","kind":"xid","cluster":"alpha","node":"alpha1","gpu":"GPU-6c4a1b9e-0000-4000-8000-000000000001","job":null,"code":"79","boot":null,"seen_at":1001.0,"happened_at":1001.0,"raw_hash":"","pci":null,"stamp":null,"rank":null,"count":1,"value":null,"detail":"GPU has fallen off the bus."}');
INSERT INTO "evidence" VALUES(2,'835cc734935fa2a6','alpha','alpha1',NULL,'xid',1002.0,'{"source":"kernel","kind":"xid","cluster":"alpha","node":"alpha1","gpu":null,"job":null,"code":"31","boot":null,"seen_at":1002.0,"happened_at":1002.0,"raw_hash":"","pci":null,"stamp":null,"rank":null,"count":1,"value":null,"detail":""}');
INSERT INTO "evidence" VALUES(3,'e7b4b275d556a86c','alpha','alpha1',NULL,'node_drained',1003.0,'{"source":"scheduler","kind":"node_drained","cluster":"alpha","node":"alpha1","gpu":null,"job":null,"code":"drained","boot":null,"seen_at":1003.0,"happened_at":1003.0,"raw_hash":"","pci":null,"stamp":null,"rank":null,"count":1,"value":null,"detail":"NHC: check_gpu"}');
INSERT INTO "evidence" VALUES(4,'4c0dcae81bfed5c8','alpha','alpha1',NULL,'log_text',1004.0,'{"source":"job","kind":"log_text","cluster":"alpha","node":"alpha1","gpu":null,"job":null,"code":"cuda","boot":null,"seen_at":1004.0,"happened_at":1004.0,"raw_hash":"","pci":null,"stamp":null,"rank":null,"count":1,"value":null,"detail":""}');
CREATE TABLE history_schema (
	id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "history_schema" VALUES(1,1);
CREATE TABLE reports (
	id INTEGER NOT NULL, 
	subject VARCHAR(400) NOT NULL, 
	kind VARCHAR(60) NOT NULL, 
	body TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (digest)
);
INSERT INTO "reports" VALUES(1,'job/llm','job','{"subject":"job/llm"}','b55688a525349c3c8c83241fddd5134290966b2b73ad206b9534b9391b38a431',1005.0);
CREATE TABLE specs (
	id INTEGER NOT NULL, 
	job VARCHAR(200) NOT NULL, 
	cluster VARCHAR(200) NOT NULL, 
	native_id VARCHAR(200) NOT NULL, 
	script TEXT, 
	spec_text TEXT NOT NULL, 
	redacted BOOLEAN NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "specs" VALUES(1,'llm','alpha','7','#!/bin/sh
srun train
','JobId=7',0,'f82bfcdcc658b303112b9b4f7555758f709b56e2a09ae079f91ceeec822b6853',1000.0);
CREATE TABLE verdicts (
	id INTEGER NOT NULL, 
	subject VARCHAR(400) NOT NULL, 
	body TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "verdicts" VALUES(1,'node/alpha/alpha1','{"fault":"hardware","culprit":{"node":null,"gpu":null,"job":null},"rule":"xid-79","title":"GPU lost","first_rung":"reboot","companions":[],"refused":[],"confidence":0.5,"catalogue":"","evidence":[],"evidence_text":[]}','63cb475df8854254445aeeb9b7a48f8b23f8fad01354c97b8be8174988676217',1006.0);
CREATE INDEX evidence_by_node ON evidence (cluster, node, seen_at);
CREATE INDEX evidence_by_job ON evidence (cluster, job, seen_at);
CREATE INDEX reports_by_subject ON reports (subject, id);
CREATE INDEX specs_by_job ON specs (job, id);
CREATE INDEX verdicts_by_subject ON verdicts (subject, id);
COMMIT;
